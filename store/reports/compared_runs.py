"""The two runs of a comparison, each in a store of its own: one question to each, one table, and its notes. Pure."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lightningbus.store.reports import ResultTable

COMPARISON = "compare"
TASK_COMPARISON = "compare_tasks"
COMPARISONS = (COMPARISON, TASK_COMPARISON)
"""Names of the reports about two runs, whose parameters are the same."""
Side = Literal["a", "b"]
SIDES: tuple[Side, Side] = ("a", "b")
"""Parameters of the report that name a run, and its columns with their figures."""


def choose_side(arguments: Mapping[str, str], side: Side, run_id: str) -> dict[str, str]:
    """Return the arguments of a question about one run alone, ``run_id`` in its store: the other side stays empty."""
    return {**arguments, **dict.fromkeys(SIDES, ""), side: run_id}


def join_sides(a: ResultTable, b: ResultTable, names: str) -> ResultTable:
    """Join the answers about run a and about run b: a figure of each, and their difference b - a.

    The difference of standard errors is that of the difference of both means.

    Both have the columns of the report, with the same figures in the same order. ``names`` of both runs stand in the
    column ``run_id``.
    """
    columns = a[0]
    rows = []
    for of_a, of_b in zip(a[1], b[1], strict=True):
        row = dict(zip(columns, of_a, strict=True))
        row |= {"run_id": names, "b": dict(zip(b[0], of_b, strict=True))["b"]}
        combine = _add_errors if str(row["figure"]).startswith("standard error") else _subtract
        row["difference"] = combine(row["b"], row["a"])
        rows.append(tuple(row[column] for column in columns))
    return columns, rows


def join_tasks(a: ResultTable, b: ResultTable, names: str) -> ResultTable:
    """Join the answers of ``compare_tasks`` about run a and about run b: a row for each task, the greatest gain first.

    A task of both has the same name and the same input. ``names`` of both runs stand in the column ``run_id``.
    """
    columns = a[0]
    tasks: dict[tuple[Any, Any], dict[str, Any]] = {}
    for side, (_, rows) in zip(SIDES, (a, b), strict=True):
        for values in rows:
            row = dict(zip(columns, values, strict=True))
            task = tasks.setdefault((row["task"], row["input_hash"]), row | {"run_id": names})
            task |= {name: row[name] for name in (f"rollouts_{side}", f"reward_{side}")}
    for task in tasks.values():
        task["difference"] = _subtract(task["reward_b"], task["reward_a"])
    order = sorted(tasks.values(), key=_rank_task)
    return columns, [tuple(task[column] for column in columns) for task in order]


def pair_tasks(compared: ResultTable, tasks: ResultTable) -> ResultTable:
    """Add to the figures of two runs those of the tasks that both have: number, mean reward and paired difference.

    ``compared`` is from `join_sides`, ``tasks`` from `join_tasks`. The standard error of a mean of n paired differences
    is their sample standard deviation over √n.
    """
    columns, rows = compared
    names = rows[0][columns.index("run_id")]
    both = [
        row
        for row in (dict(zip(tasks[0], values, strict=True)) for values in tasks[1])
        if row["difference"] is not None
    ]
    differences = [row["difference"] for row in both]
    error = statistics.stdev(differences) / math.sqrt(len(both)) if len(both) > 1 else None
    means = [statistics.fmean(row[f"reward_{side}"] for row in both) if both else None for side in SIDES]
    paired = [
        ("tasks in both", float(len(both)), float(len(both)), 0.0),
        ("mean reward of tasks in both", *means, statistics.fmean(differences) if both else None),
        ("standard error of the paired difference", None, None, error),
    ]
    after = 1 + [row[columns.index("figure")] for row in rows].index("standard error of the mean reward")
    return columns, [*rows[:after], *((names, *row) for row in paired), *rows[after:]]


def explain_no_pairs(tasks: ResultTable) -> str:
    """Explain why no task is in both runs though names are: their inputs differ; empty where there are pairs.

    ``tasks`` is from `join_tasks`.
    """
    rows = [dict(zip(tasks[0], values, strict=True)) for values in tasks[1]]
    names = [{row["task"] for row in rows if row[f"reward_{side}"] is not None} for side in SIDES]
    num_shared = len(names[0] & names[1])
    if not num_shared or any(row["difference"] is not None for row in rows):
        return ""
    return f"no task is in both runs: {num_shared} have the same name, and each another input"


def describe_selection(arguments: Mapping[str, str], side: Side, evaluations: Sequence[str] = ()) -> str:
    """Describe which rollouts of a run are compared, as ``mode=eval, version_b=7``.

    ``evaluations`` are those of the run: where none of them is chosen, the text names them.
    """
    names = ("mode", "evaluation", "model", f"version_{side}")
    chosen = {"mode": "train"} | {name: arguments[name] for name in names if arguments.get(name)}
    text = ", ".join(f"{name}={value}" for name, value in chosen.items())
    if chosen["mode"] != "eval" or chosen.get("evaluation") in evaluations or not evaluations:
        return text
    return f"{text}: choose one by --param evaluation=NAME; there are {', '.join(evaluations)}"


Learners = Mapping[str, Mapping[str, Any]]
"""Settings of a run's learners, by model; empty where they are not on record."""
FAILED = {"mask": "left out", "zero": "0"}
"""Words for how a failed rollout of training counts, by the setting ``failed_rollouts``."""


def list_notes(
    names: Sequence[str], learners: Sequence[Learners], arguments: Mapping[str, str], compared: ResultTable
) -> Iterator[str]:
    """Yield a sentence for each reason why the figures of two runs do not compare like with like.

    ``names`` and ``learners`` are those of run a and of run b, ``compared`` is the table of both.
    """
    rewards = [
        {repr(each["reward"]) if each.get("reward") else "the main one" for each in run.values()} for run in learners
    ]
    if not arguments.get("reward") and _differ(rewards):
        yield f"the runs count different rewards ({_list(names, rewards)}); --param reward=NAME compares one"
    mode = arguments.get("mode", "train")
    failed = [{FAILED[each.get("failed_rollouts", "mask")] for each in run.values()} for run in learners]
    if mode == "train" and _differ(failed):
        yield (
            f"the runs count failed rollouts differently ({_list(names, failed)}), see learner.failed_rollouts; "
            "--param mode=eval compares evaluations, where each counts as 0"
        )
    if mode == "eval":
        rows = [dict(zip(compared[0], row, strict=True)) for row in compared[1]]
        num_versions = next((row for row in rows if row["figure"] == "versions"), {})
        for side, name in zip(SIDES, names, strict=True):
            if (num_versions.get(side) or 0) > 1:
                yield (
                    f"{side}, {name}: the evaluations of {num_versions[side]:.0f} versions are pooled; "
                    f"--param version_{side}=N chooses one"
                )


def _differ(kinds: Sequence[set[str]]) -> bool:
    return all(kinds) and kinds[0] != kinds[1]


def _list(names: Sequence[str], kinds: Sequence[set[str]]) -> str:
    return ", ".join(f"{name}: {' and '.join(sorted(each))}" for name, each in zip(names, kinds, strict=True))


def _add_errors(b: Any, a: Any) -> float | None:
    return None if a is None or b is None else math.hypot(a, b)


def _subtract(b: Any, a: Any) -> float | None:
    return None if a is None or b is None else b - a


def _rank_task(task: Mapping[str, Any]) -> tuple[bool, float, str, str]:
    difference = task["difference"]
    return difference is None, -(difference or 0.0), task["task"], task["input_hash"]
