"""The 95 % interval of a success rate and of another mean."""

from math import sqrt

import pytest

from lightningbus.store.reports.interval import add_intervals, estimate_interval, format_mean


@pytest.mark.parametrize(
    ("num_right", "num", "low", "high"),
    [
        (20, 20, 0.8389, 1.0),
        (0, 20, 0.0, 0.1611),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, doi:10.1002/(SICI)1097-0258(19980430)17:8, table I
        (15, 148, 0.0624, 0.1605),
    ],
)
def test_a_success_rate_has_the_wilson_score_interval(num_right: int, num: int, low: float, high: float) -> None:
    rate = num_right / num
    error = sqrt(rate * (1 - rate) / (num - 1))
    assert estimate_interval(rate, error, num, num, is_success_rate=True) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("num", [8, 20, 32, 63, 148])
def test_a_bound_is_exact_where_no_answer_or_each_answer_is_right(num: int) -> None:
    none, each = (estimate_interval(rate, 0.0, num, num, is_success_rate=True) for rate in (0.0, 1.0))
    assert none is not None and each is not None and (none[0], each[1]) == (0.0, 1.0)


def test_answers_to_one_task_that_agree_count_once() -> None:
    alike = estimate_interval(0.5, sqrt(0.25 / 20), 20, 80, is_success_rate=True)
    assert alike == pytest.approx(estimate_interval(0.5, None, 20, 20, is_success_rate=True))
    apart = estimate_interval(0.5, sqrt(0.25 / 80), 20, 80, is_success_rate=True)
    assert apart == pytest.approx(estimate_interval(0.5, None, 80, 80, is_success_rate=True))
    all_right = estimate_interval(1.0, 0.0, 20, 80, is_success_rate=True)
    assert all_right == pytest.approx((0.8389, 1.0), abs=5e-5)


def test_another_mean_has_its_standard_errors_to_each_side() -> None:
    assert estimate_interval(3.0, 0.5, 9, 9, is_success_rate=False) == pytest.approx((2.02, 3.98), abs=1e-4)
    assert estimate_interval(3.0, None, 1, 4, is_success_rate=False) is None
    assert estimate_interval(0.5, 0.0, 32, 64, is_success_rate=False) is None, "equal rewards tell no spread"
    assert estimate_interval(None, None, 0, 0, is_success_rate=True) is None


def test_a_report_gets_the_bounds_as_columns_where_it_has_what_they_follow_from() -> None:
    columns = ["version", "mean_reward", "standard_error", "tasks", "rollouts", "is_success_rate"]
    names, ((*_, low, high),) = add_intervals((columns, [(3, 1.0, 0.0, 20, 20, 1)]))
    assert names[-2:] == ["low_95", "high_95"] and (round(low, 2), high) == (0.84, 1.0)
    assert add_intervals((["version"], [(3,)])) == (["version"], [(3,)])
    assert (format_mean(1.0, 0.0, (low, high)), format_mean(1.0, 0.1)) == ("1.00 (0.84 to 1.00)", "1.00 ± 0.10")
