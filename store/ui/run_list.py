"""The list of runs: one entry a run, from rows of several queries. `build_runs` is pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightningbus.schemas.fleet import Heartbeat
from lightningbus.store.reports.counted_rewards import COUNTED_REWARD, COUNTED_REWARDS, REWARD_SETTINGS, TASK_REWARDS
from lightningbus.store.ui.client import StoreState
from lightningbus.store.ui.other_run import OtherRun
from lightningbus.store.ui.run_state import choose_state

QueryRow = dict[str, Any]

RECENT_ROLLOUTS = 200
"""Number of last rollouts whose mean is the training reward of a run."""

NO_LABELS: QueryRow = {"tags": [], "note": "", "is_archived": False}
"""Labels of a run that nobody gave any."""

SETS = f"""
WITH training_steps AS (SELECT run_id, model, step, epoch, settings FROM raw_training_steps),
tasks AS (SELECT run_id, rollout_id, reward_name FROM raw_tasks WHERE mode = 'train'),
recent AS
(
    SELECT r.run_id AS run_id, avg({COUNTED_REWARD}) AS mean_reward
    FROM
    (
        SELECT * FROM
        (
            SELECT run_id, mode, rollout_id, outcome, reward, rewards, ended_at FROM raw_attempts
            WHERE resolution = 'final' AND mode = 'train' ORDER BY ended_at DESC LIMIT {RECENT_ROLLOUTS} BY run_id
        )
        ORDER BY ended_at DESC LIMIT 1 BY run_id, rollout_id
    ) AS r
    LEFT ANY JOIN (SELECT * FROM ({REWARD_SETTINGS}) WHERE task_model IN ('', model)) AS f ON r.run_id = f.run_id
    LEFT ANY JOIN ({TASK_REWARDS}) AS n ON r.run_id = n.run_id AND r.rollout_id = n.rollout_id
    GROUP BY r.run_id
)
SELECT r.run_id AS run_id, r.mode AS mode, r.evaluation AS evaluation, r.rollouts AS rollouts,
    if(mode = 'train', l.mean_reward, NULL) AS mean_reward, v.version AS version,
    toUnixTimestamp64Milli(r.first_started_at) AS first_ms, toUnixTimestamp64Milli(r.last_ended_at) AS last_ms
FROM runs AS r
LEFT JOIN recent AS l ON r.run_id = l.run_id
LEFT JOIN (SELECT run_id, toNullable(max(version)) AS version FROM weight_versions GROUP BY run_id) AS v
    ON r.run_id = v.run_id
ORDER BY run_id, mode DESC, evaluation
"""
"""Training, and each evaluation, of every run; the reward is that of the model that agents call by name."""

EVALUATION_RESULTS = f"""
WITH rollouts AS (SELECT * FROM raw_rollouts FINAL WHERE mode = 'eval'),
tasks AS (SELECT * FROM raw_tasks WHERE mode = 'eval'),
training_steps AS (SELECT run_id, model, step, epoch, settings FROM raw_training_steps),
counted_rewards AS ({COUNTED_REWARDS})
SELECT run_id, model, evaluation, min(at) AS first_version, max(at) AS last_version,
    argMin(mean, at) AS first_mean, argMax(mean, at) AS last_mean
FROM
(
    SELECT run_id, model, evaluation, version AS at, avg(counted_reward) AS mean FROM counted_rewards
    GROUP BY run_id, model, evaluation, at
)
GROUP BY run_id, model, evaluation ORDER BY run_id, model, evaluation
"""
"""Mean reward of the first and the last evaluated version of each model."""

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
ZERO_SETTINGS = {"max_staleness"}
"""Those that say something where they are 0."""
GENERIC_NAMES = {"model", "checkpoint", "snapshot"}
"""Last parts of paths that name no model by themselves."""


def build_runs(
    event_times: Sequence[QueryRow],
    sets: Sequence[QueryRow],
    results: Sequence[QueryRow],
    last_steps: Sequence[QueryRow],
    members: Iterable[Heartbeat] | None,
    store: StoreState,
    now_ms: float,
) -> list[QueryRow]:
    """Build one entry for each run that has an event, the run with the newest event first.

    ``members`` are the living processes; None: no bus answers.
    """
    results_of, steps_of, sets_of = _by_run(results), _by_run(parse_steps(last_steps)), _by_run(sets)
    members = None if members is None else list(members)
    runs = []
    for times in event_times:
        run_id = times["run_id"]
        steps, of_run = order_steps(steps_of[run_id]), sets_of[run_id]
        slowest = min(steps, key=lambda step: step["step"], default=None)
        main = steps[0]["model"] if steps else next((row["model"] for row in results_of[run_id]), "")
        seconds_since_last = (now_ms - times["last_ms"]) / 1000
        runs.append(
            {
                "run_id": run_id,
                "state": choose_state(
                    times["events"], seconds_since_last, steps, select_learners(members, run_id), store
                ),
                "step": slowest["step"] if slowest else None,
                "max_steps": (slowest["settings"].get("max_steps") or None) if slowest else None,
                "models": [step["model"] for step in steps],
                "settings": summarize_settings(steps[0]["settings"]) if steps else {},
                "results": [row for row in results_of[run_id] if row["model"] == main],
                "sets": [
                    {name: row[name] for name in ("mode", "evaluation", "rollouts", "mean_reward")} for row in of_run
                ],
                "version": of_run[0]["version"] if of_run else None,
                "first_ms": min((row["first_ms"] for row in of_run), default=times["first_ms"]),
                "last_ms": times["last_ms"],
            }
        )
    return sorted(runs, key=lambda run: (-run["last_ms"], run["run_id"]))


def merge_runs(runs: Sequence[QueryRow], others: Sequence[OtherRun]) -> list[QueryRow]:
    """Merge the entries of `build_runs` with runs that have their own store, the run with the newest event first."""
    entries = [_describe_other(run) for run in others]
    names = {entry["run_id"] for entry in entries}
    return sorted(
        [*(run for run in runs if run["run_id"] not in names), *entries],
        key=lambda run: (-run["last_ms"], run["run_id"]),
    )


def label_runs(runs: Sequence[QueryRow], labels: Mapping[str, QueryRow]) -> list[QueryRow]:
    """Return the entries with the labels of their runs; ``labels`` has those of runs with any, by id."""
    return [{**run, **NO_LABELS, **labels.get(run["run_id"], {})} for run in runs]


def _describe_other(run: OtherRun) -> QueryRow:
    return {
        "run_id": run.run_id,
        "state": run.state,
        "step": run.step,
        "max_steps": run.max_steps,
        "models": list(run.models),
        "settings": summarize_settings(run.settings),
        "results": [
            {
                "evaluation": evaluation,
                "first_version": min(means),
                "last_version": max(means),
                "first_mean": means[min(means)],
                "last_mean": means[max(means)],
            }
            for evaluation, means in run.means.items()
        ],
        "sets": []
        if not run.rollouts and run.reward is None
        else [{"mode": "train", "evaluation": "", "rollouts": run.rollouts or 0, "mean_reward": run.reward}],
        "version": None,
        "first_ms": run.first_ms,
        "last_ms": run.last_ms,
    }


def select_learners(members: Iterable[Heartbeat] | None, run_id: str) -> list[Heartbeat] | None:
    """Select the heartbeats of a run's learners; None: no bus answers."""
    return None if members is None else [beat for beat in members if beat.role == "learner" and beat.run_id == run_id]


def order_steps(last_steps: Sequence[QueryRow]) -> list[QueryRow]:
    """Order the last steps of a run's models, that of the model which agents call by name first."""
    return sorted(
        last_steps, key=lambda step: (step["settings"].get("task_model") not in (None, step["model"]), step["model"])
    )


def parse_steps(last_steps: Sequence[QueryRow]) -> list[QueryRow]:
    """Decode the learner's settings in the last training steps."""
    return [{**step, "settings": parse_settings(step["settings"])} for step in last_steps]


def parse_settings(text: str) -> dict[str, Any]:
    """Decode a learner's settings from JSON; empty where a step has none."""
    settings = json.loads(text) if text else {}
    return settings if isinstance(settings, dict) else {}


def summarize_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the settings of the list by their short names; unset ones are left out."""
    short = {}
    for path, name in SHORT_SETTINGS.items():
        value: Any = settings
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value or (path in ZERO_SETTINGS and value == 0):
            short[name] = _name_model(str(value)) if path == "model_path" else value
    return short


def _name_model(path: str) -> str:
    *_, parent, name = ["", *path.rstrip("/").split("/")]
    return f"{parent}/{name}" if parent and name in GENERIC_NAMES else name


def _by_run(rows: Sequence[QueryRow]) -> defaultdict[str, list[QueryRow]]:
    by_run: defaultdict[str, list[QueryRow]] = defaultdict(list)
    for row in rows:
        by_run[row["run_id"]].append(row)
    return by_run
