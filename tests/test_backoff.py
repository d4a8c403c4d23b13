"""Delays double from the first to the longest one, and start again after a success."""

from lightningbus.common.backoff import Backoff, RetryPolicy


def test_the_delay_doubles_up_to_the_longest_and_starts_again() -> None:
    backoff = Backoff(RetryPolicy(0.5, 3.0))
    assert [backoff.next_delay() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_delay() == 0.5


def test_no_number_of_failures_overflows() -> None:
    policy = RetryPolicy(1.0, 60.0)
    assert policy.delay_after(0) == policy.delay_after(1) == 1.0 and policy.delay_after(10**9) == 60.0
