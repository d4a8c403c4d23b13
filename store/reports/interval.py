"""The 95 % confidence interval of a mean reward. Pure."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Half the width of the central 95 % of a normal distribution, in standard deviations: 1.96."""
COLUMNS = ("mean_reward", "standard_error", "tasks", "rollouts", "is_success_rate")
"""Columns of a row from which its interval follows."""

Interval = tuple[float, float]


def estimate_interval(
    mean: float | None, standard_error: float | None, num_tasks: int, num_rollouts: int, *, is_success_rate: bool
) -> Interval | None:
    """Return the bounds of the 95 % confidence interval of a mean reward; None where nothing tells how it varies.

    That is so of a single task, and of tasks that all have the same mean, which is no success rate.

    A success rate, whose rewards are all 0 or 1, has the Wilson score interval (Wilson 1927,
    doi:10.1080/01621459.1927.10502953): it stays within 0 and 1, and has a width where all answers are right. Answers
    to one task are not independent, so the number of answers is the effective one, p (1 − p) / standard_error² (Kish
    1965, Survey Sampling), at least the tasks and at most the rollouts. Other means have mean ± 1.96 standard errors.
    """
    if mean is None or num_tasks < 1:
        return None
    if not is_success_rate:
        return (mean - NORMAL_95 * standard_error, mean + NORMAL_95 * standard_error) if standard_error else None
    mean = min(max(mean, 0.0), 1.0)
    variance = mean * (1 - mean)
    effective = variance / standard_error**2 if standard_error else 0.0
    num = min(max(effective, num_tasks), max(num_rollouts, num_tasks))
    square = NORMAL_95**2
    middle = (mean + square / (2 * num)) / (1 + square / num)
    half = NORMAL_95 / (1 + square / num) * math.sqrt(variance / num + square / (4 * num * num))
    return (max(0.0, middle - half) if mean > 0 else 0.0), (min(1.0, middle + half) if mean < 1 else 1.0)


def estimate_row_interval(row: Mapping[str, Any]) -> Interval | None:
    """Return the interval of a row of `reward_by_version` or `reward_by_name`; None where it lacks `COLUMNS`."""
    if any(name not in row for name in COLUMNS):
        return None
    mean, error, num_tasks, num_rollouts, is_success_rate = (row[name] for name in COLUMNS)
    return estimate_interval(mean, error, num_tasks, num_rollouts, is_success_rate=bool(is_success_rate))


def add_intervals(table: tuple[list[str], list[tuple[Any, ...]]]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return a report's columns and rows with the bounds ``low_95`` and ``high_95``, where it has `COLUMNS`."""
    columns, rows = table
    if not set(COLUMNS) <= set(columns):
        return table
    intervals = [estimate_row_interval(dict(zip(columns, row, strict=True))) or (None, None) for row in rows]
    return [*columns, "low_95", "high_95"], [(*row, *each) for row, each in zip(rows, intervals, strict=True)]


def format_mean(mean: float, standard_error: float | None, interval: Sequence[float] | None = None) -> str:
    """Format a mean with its 95 % interval, ``0.95 (0.76 to 0.99)``; else with its standard error, ``0.95 ± 0.05``."""
    if interval is not None:
        return f"{mean:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"
    return f"{mean:.2f}" + (f" ± {standard_error:.2f}" if standard_error is not None else "")
