"""Progress of a run's training: the axes of its curves, and its speed. Queries, and pure functions of their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightningbus.store.reports.interval import estimate_row_interval
from lightningbus.store.ui.queries import MAX_POINTS, OF_MODEL
from lightningbus.store.ui.run_list import parse_settings, summarize_settings

QueryRow = dict[str, Any]

RECENT_SECONDS = 600
"""The speed of a run is that of its last so many seconds."""
MIN_STEPS = 4
"""Smallest number of steps to measure the time of a step over, once there are as many."""

AXES = f"""
SELECT model, max(at) AS step, max(made) AS version, min(start) AS started_ms, max(end) AS ended_ms,
    max(total_tokens) AS tokens, max(total_rollouts) AS rollouts
FROM
(
    SELECT model, toUInt32(step) AS at, version AS made, toUnixTimestamp64Milli(started_at) AS start,
        toUnixTimestamp64Milli(ended_at) AS end,
        sum(metrics['tokens']) OVER steps AS total_tokens, sum(metrics['rollouts']) OVER steps AS total_rollouts,
        intDiv(max(step) OVER (PARTITION BY model), {MAX_POINTS}) + 1 AS width
    FROM training_steps WHERE run_id = {{run_id:String}} AND {OF_MODEL}
    WINDOW steps AS (PARTITION BY model ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
GROUP BY model, intDiv(at, width) ORDER BY model, step
"""
"""Query of the version and time of each step, and of the tokens and rollouts trained until its end."""

SPEED = f"""
WITH (SELECT (min(started_at), max(ended_at)) FROM raw_attempts WHERE run_id = {{run_id:String}}) AS bounds
SELECT count() AS rollouts, sum(response_tokens) AS tokens,
    least({RECENT_SECONDS}., date_diff('millisecond', bounds.1, bounds.2) / 1000) AS seconds
FROM rollouts
WHERE run_id = {{run_id:String}} AND ended_at > bounds.2 - toIntervalSecond({RECENT_SECONDS})
GROUP BY bounds
"""
"""Rollouts and sampled tokens of the run's last ten minutes, and how many seconds these were."""

COST = """
SELECT nullIf((SELECT sum(cost) FROM grades WHERE run_id = {run_id:String}) + sum(external_cost), 0) AS cost,
    sum(num_unpriced_calls) AS num_unpriced_calls
FROM attempts WHERE run_id = {run_id:String}
"""
"""Query of the cost of judges and of external model calls, NULL if there is none, and of calls without a price."""


def build_overview(
    axes: Sequence[QueryRow],
    speed: Sequence[QueryRow],
    cost: Sequence[QueryRow],
    settings: Sequence[QueryRow],
    rewards: Sequence[QueryRow],
    now_ms: float,
) -> QueryRow:
    """Build the figures at the head of a run's page, of one model; each is None while it is not known.

    ``rewards`` are the points of `lightningbus.store.reports.merged_points.merge_thin_points`.
    """
    in_force = parse_settings(settings[0]["settings"]) if settings else {}
    step = axes[-1]["step"] if axes else None
    num_steps = in_force.get("max_steps") or None
    return {
        "step": step,
        "num_steps": num_steps,
        "seconds_left": estimate_seconds_left(axes, num_steps, now_ms),
        "rollouts_per_hour": _per_hour(speed, "rollouts"),
        "tokens_per_hour": _per_hour(speed, "tokens"),
        "cost": cost[0]["cost"] if cost else None,
        "num_unpriced_calls": cost[0]["num_unpriced_calls"] if cost else 0,
        "settings": summarize_settings(in_force),
        "rewards": [summarize_rewards(rows) for rows in _by_set(rewards)],
    }


def estimate_seconds_left(axes: Sequence[QueryRow], num_steps: int | None, now_ms: float) -> float | None:
    """Estimate the seconds until the last step has ended, from the last half of the steps; None: not known."""
    if num_steps is None or len(axes) < 2:
        return None
    recent = axes[-1 - max(MIN_STEPS, len(axes) // 2) :]
    first, last = recent[0], recent[-1]
    seconds = (last["ended_ms"] - first["ended_ms"]) / 1000 / (last["step"] - first["step"])
    running = min((now_ms - last["ended_ms"]) / 1000, seconds)
    return max(0.0, float((num_steps - last["step"]) * seconds - running))


def summarize_rewards(rows: Sequence[QueryRow]) -> QueryRow:
    """Pick the last and the best point of one curve."""
    best = max(rows, key=lambda row: (row["mean_reward"], row["version"]))
    return {name: rows[0][name] for name in ("mode", "evaluation")} | {"now": _point(rows[-1]), "best": _point(best)}


def _point(row: Mapping[str, Any]) -> QueryRow:
    names = ("version", "per_point", "rollouts", "mean_reward", "standard_error")
    return {name: row[name] for name in names} | {"interval": estimate_row_interval(row)}


def _per_hour(speed: Sequence[QueryRow], name: str) -> float | None:
    return 3600 * float(speed[0][name]) / float(speed[0]["seconds"]) if speed and speed[0]["seconds"] > 0 else None


def _by_set(rows: Sequence[QueryRow]) -> list[list[QueryRow]]:
    sets: dict[tuple[str, str], list[QueryRow]] = {}
    for row in rows:
        sets.setdefault((row["mode"], row["evaluation"]), []).append(row)
    return list(sets.values())
