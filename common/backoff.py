"""Exponential backoff: how long to wait before the next try."""

from dataclasses import dataclass

MAX_DOUBLINGS = 62
"""Beyond this no delay grows: 2 to a higher power would overflow."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The first delay and the longest one, in seconds; the delay doubles with each failure. Temporal's name for it."""

    initial_interval: float
    maximum_interval: float

    def delay_after(self, num_failures: int) -> float:
        """Return the seconds to wait after this many failures in a row, at least 1."""
        return min(self.initial_interval * 2.0 ** min(max(num_failures, 1) - 1, MAX_DOUBLINGS), self.maximum_interval)


class Backoff:
    """Counts failures in a row."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._num_failures = 0

    def next_delay(self) -> float:
        """Count a failure; return the seconds to wait."""
        self._num_failures += 1
        return self._policy.delay_after(self._num_failures)

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._num_failures = 0
