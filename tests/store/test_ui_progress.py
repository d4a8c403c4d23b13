"""The figures at the head of a run, and points of few rollouts."""

from typing import Any

import pytest

from lightningbus.store.reports.merged_points import merge_thin_points
from lightningbus.store.ui.progress import build_overview, estimate_seconds_left


def point(version: int, rollouts: int, mean: float, error: float | None = 0.1, **fields: Any) -> dict[str, Any]:
    """A row of the question `rewards`."""
    row = {"model": "policy", "mode": "train", "evaluation": "", "version": version, "per_point": 1}
    return (
        row | {"rollouts": rollouts, "mean_reward": mean, "standard_error": error, "worst": 0.0, "best": 1.0} | fields
    )


def step(number: int, ended_seconds: float) -> dict[str, Any]:
    """A row of the question `axes`."""
    return {"step": number, "version": number, "ended_ms": 1000 * ended_seconds}


def test_a_last_version_of_one_failed_rollout_joins_the_one_before() -> None:
    points = merge_thin_points([point(0, 32, 0.5), point(1, 32, 0.75), point(2, 1, 0.0, None)])
    assert [(row["version"], row["per_point"], row["rollouts"]) for row in points] == [(0, 1, 32), (1, 2, 33)]
    assert points[1]["mean_reward"] == pytest.approx(32 * 0.75 / 33) and points[1]["standard_error"] == 0.1


def test_points_of_evaluations_and_of_other_models_are_never_merged() -> None:
    rows = [
        point(0, 32, 0.5),
        point(0, 1, 0.5, model="checker"),
        point(0, 40, 0.5, mode="eval", evaluation="greedy"),
        point(4, 2, 0.5, mode="eval", evaluation="greedy"),
    ]
    assert merge_thin_points(rows) == rows


def test_errors_of_merged_points_are_those_of_the_weighed_mean() -> None:
    (merged,) = merge_thin_points([point(3, 300, 0.5, 0.2), point(4, 30, 1.0, 0.4)])
    assert merged["standard_error"] == pytest.approx(((300 * 0.2) ** 2 + (30 * 0.4) ** 2) ** 0.5 / 330)


def test_time_left_is_that_of_the_last_half_of_the_steps() -> None:
    ends = [step(1, 100), step(2, 200), *(step(number, 200 + 10 * (number - 2)) for number in range(3, 11))]
    assert estimate_seconds_left(ends, 20, 280_000) == pytest.approx(100)
    assert estimate_seconds_left(ends, 20, 284_000) == pytest.approx(96), "four seconds of a step are done"
    assert estimate_seconds_left(ends, 10, 284_000) == 0
    assert estimate_seconds_left(ends[:1], 20, 0) is None and estimate_seconds_left(ends, None, 0) is None


def test_the_head_of_a_run_without_anything_knows_nothing() -> None:
    empty = build_overview([], [], [], [], [], 0)
    assert empty["rewards"] == [] and empty["settings"] == {}
    assert {empty[name] for name in ("step", "num_steps", "seconds_left", "rollouts_per_hour", "cost")} == {None}


def test_the_head_has_the_last_and_the_best_point_of_each_set() -> None:
    rows = [point(0, 8, 0.25), point(1, 8, 0.75), point(2, 8, 0.5), point(0, 4, 0.0, mode="eval", evaluation="greedy")]
    speed = [{"rollouts": 60, "tokens": 6000, "seconds": 600.0}]
    settings = [{"settings": '{"max_steps": 9, "max_staleness": 0, "model_path": "runs/a/model"}'}]
    head = build_overview(
        [step(1, 1), step(2, 2)], speed, [{"cost": 0.5, "num_unpriced_calls": 2}], settings, rows, 2000
    )
    (training, greedy) = head["rewards"]
    assert (training["now"]["version"], training["best"]["version"], greedy["best"]["mean_reward"]) == (2, 1, 0.0)
    assert (head["rollouts_per_hour"], head["tokens_per_hour"], head["cost"]) == (360, 36000, 0.5)
    assert head["num_unpriced_calls"] == 2
    assert head["settings"] == {"model": "a/model", "max staleness": 0} and head["seconds_left"] == 7
