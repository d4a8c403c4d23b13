"""The list of runs: one entry a run, from rows of several queries. `build_runs` is pure."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from store.ui.run_state import IDLE_SECONDS

QueryRow = dict[str, Any]

RECENT_ROLLOUTS = 200
"""Rollouts that say how a run does now."""
RECENT_MS = 1000 * IDLE_SECONDS
"""A run whose last rollout is newer still runs, as far as anybody knows who sees no heartbeats."""

SETS = f"""
WITH recent AS
(
    SELECT run_id, mode, evaluation, avg(reward) AS mean_reward
    FROM
    (
        SELECT * FROM
        (
            SELECT run_id, mode, evaluation, rollout_id, reward, ended_at FROM raw_attempts WHERE resolution = 'final'
            AND outcome = 'ok'
            ORDER BY ended_at DESC LIMIT {RECENT_ROLLOUTS} BY run_id, mode, evaluation
        )
        ORDER BY ended_at DESC LIMIT 1 BY run_id, mode, evaluation, rollout_id
    )
    GROUP BY run_id, mode, evaluation
)
SELECT r.run_id AS run_id, r.mode AS mode, r.evaluation AS evaluation, r.rollouts AS rollouts,
    l.mean_reward AS mean_reward, v.version AS version,
    toUnixTimestamp64Milli(r.first_started_at) AS first_ms, toUnixTimestamp64Milli(r.last_ended_at) AS last_ms
FROM runs AS r
LEFT JOIN recent AS l ON r.run_id = l.run_id AND r.mode = l.mode AND r.evaluation = l.evaluation
LEFT JOIN (SELECT run_id, toNullable(max(version)) AS version FROM weight_versions GROUP BY run_id) AS v
    ON r.run_id = v.run_id
ORDER BY run_id, mode DESC, evaluation
"""
"""Training, and each evaluation, of every run."""

EVALUATION_RESULTS = """
SELECT run_id, evaluation, min(version) AS first_version, max(version) AS last_version,
    argMin(mean, version) AS first_mean, argMax(mean, version) AS last_mean
FROM
(
    SELECT run_id, evaluation, assumeNotNull(max_weight_version) AS version,
        avg(if(outcome = 'ok', ifNull(reward, 0.), 0.)) AS mean
    FROM
    (
        SELECT run_id, evaluation, rollout_id, outcome, reward, max_weight_version FROM raw_attempts
        WHERE mode = 'eval' AND resolution != 'retried' AND max_weight_version IS NOT NULL
        ORDER BY run_id, rollout_id, resolution, stream_sequence LIMIT 1 BY run_id, rollout_id
    )
    GROUP BY run_id, evaluation, version
)
GROUP BY run_id, evaluation ORDER BY run_id, evaluation
"""
"""Mean reward of the first and the last evaluated version; a failed rollout counts as 0, as in `train`'s results."""

LAST_STEPS = """
SELECT run_id, model, step, settings FROM raw_training_steps
WHERE (run_id, model, step) IN (SELECT run_id, model, max(step) FROM raw_training_steps GROUP BY run_id, model)
ORDER BY epoch DESC LIMIT 1 BY run_id, model
"""
"""The last training step of each model, with the learner's settings."""

SHORT_SETTINGS = {
    "model_path": "model",
    "algorithm.adv_estimator": "advantage",
    "actor.optim.lr": "lr",
    "groups_per_step": "groups per step",
    "group_size": "group size",
    "max_staleness": "max staleness",
    "lora.lora_rank": "LoRA rank",
}
"""Settings of the list, by path, with their short names."""


def build_runs(
    sets: Sequence[QueryRow],
    results: Sequence[QueryRow],
    last_steps: Sequence[QueryRow],
    alive: Collection[str] | None,
    now_ms: float,
) -> list[QueryRow]:
    """One entry a run, the run with the newest rollout first.

    ``alive`` are the runs whose learner sends heartbeats; None: nobody knows.
    """
    results_of, steps_of, sets_of = _by_run(results), _by_run(last_steps), _by_run(sets)
    runs = []
    for run_id, of_run in sets_of.items():
        steps = [{**step, "settings": parse_settings(step["settings"])} for step in steps_of[run_id]]
        last_ms = max(row["last_ms"] for row in of_run)
        is_recent = now_ms - last_ms < RECENT_MS
        runs.append(
            {
                "run_id": run_id,
                "state": choose_state(steps, run_id in alive if alive is not None else None, is_recent),
                "step": max((step["step"] for step in steps), default=None),
                "max_steps": max((step["settings"].get("max_steps") or 0 for step in steps), default=0) or None,
                "settings": summarize_settings(steps[0]["settings"]) if steps else {},
                "results": results_of[run_id],
                "sets": [
                    {name: row[name] for name in ("mode", "evaluation", "rollouts", "mean_reward")} for row in of_run
                ],
                "version": of_run[0]["version"],
                "first_ms": min(row["first_ms"] for row in of_run),
                "last_ms": last_ms,
            }
        )
    return sorted(runs, key=lambda run: (-run["last_ms"], run["run_id"]))


def choose_state(steps: Sequence[Mapping[str, Any]], has_learner: bool | None, is_recent: bool) -> str:
    """running, finished (every model has all its steps), stopped before that, or ended (nothing was trained).

    ``has_learner``: its learner sends heartbeats; None: nobody knows.
    """
    if has_learner or (is_recent and (has_learner is None or not steps)):
        return "running"
    if not steps:
        return "ended"
    is_finished = all(step["step"] >= (step["settings"].get("max_steps") or 0) for step in steps)
    return "finished" if is_finished else "stopped"


def parse_settings(text: str) -> dict[str, Any]:
    """A learner's settings from their JSON; empty where a step has none."""
    settings = json.loads(text) if text else {}
    return settings if isinstance(settings, dict) else {}


def summarize_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the list by their short names; what is not set is left out."""
    short = {}
    for path, name in SHORT_SETTINGS.items():
        value: Any = settings
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value:
            short[name] = str(value).rstrip("/").rsplit("/", 1)[-1] if path == "model_path" else value
    return short


def _by_run(rows: Sequence[QueryRow]) -> defaultdict[str, list[QueryRow]]:
    by_run: defaultdict[str, list[QueryRow]] = defaultdict(list)
    for row in rows:
        by_run[row["run_id"]].append(row)
    return by_run
