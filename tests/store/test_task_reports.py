"""Reports about tasks take a question in several passes and at several versions as one task."""

import random
from collections.abc import Iterator
from math import sqrt
from statistics import mean, stdev
from typing import Any

import pytest

from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas import subjects
from lightningbus.schemas.ids import rollout_id
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord
from lightningbus.store.reports import REPORTS, ResultTable
from lightningbus.store.reports.compared_runs import (
    COMPARISONS,
    explain_no_pairs,
    join_sides,
    join_tasks,
    list_notes,
    pair_tasks,
)
from lightningbus.tasks.task_publisher import build_producer_span
from tests import seed_store
from tests.seed_store import SECOND_NS, START_NS
from tests.store.conftest import StoreProcess, prepared

pytestmark = pytest.mark.integration
EVALUATED = {
    0: {"a@b": [0.0, 0.0], "c": [1.0, 1.0], "d": [1.0, 0.0]},
    6: {"a@b": [0.0, 0.0], "c": [1.0, 1.0], "d": [1.0, 1.0]},
}
"""Rewards by question, by version."""
TRAINED = {"easy": [1.0, 1.0], "never": [0.0, 0.5], "raises": [None, None], "hard": [0.0, 1.0]}
"""Rewards in two passes, None: the agent fails."""


def attempt(task: Task, version: int, reward: float | None) -> Iterator[Any]:
    rollout = rollout_id(task.id, task.sample_index)
    span = build_producer_span(task, subjects.task(task.mode, "default"), START_NS, START_NS + 1)
    yield TaskBatchRecord(tasks=(TaskRecord(task=task, rollout_id=rollout, span=span),))
    recorder = AttemptRecorder(task, 1, "runner-0", START_NS, START_NS + SECOND_NS)
    part = seed_store._part([1, 2], ["a "], version, "a", random.Random(0), task.model)
    times = {"started_ns": START_NS + SECOND_NS, "ended_ns": START_NS + 2 * SECOND_NS}
    recorder.add_call(part, node="node-0", role="", request='{"model": "policy"}', **times)
    recorder.finish("ok" if reward is not None else "agent_error", reward, "", "null")
    yield from recorder.outbox


def events() -> Iterator[Any]:
    for version, by_question in EVALUATED.items():
        for question, rewards in by_question.items():
            for sample, reward in enumerate(rewards):
                name = f"{question}@few-v{version}"
                task = Task(id=name, run_id="few", mode="eval", agent="default", input=0, sample_index=sample)
                yield from attempt(task, version, reward)
    for question, passes in TRAINED.items():
        for number, result in enumerate(passes):
            task = Task(id=f"{question}@p{number}", run_id="few", agent="default", input=0)
            yield from attempt(task, 6 * number, result)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        seed_store.insert(built.sql, events())
        yield built


def ask(store: StoreProcess, name: str, **fields: str) -> list[dict[str, Any]]:
    report = REPORTS[name]
    run = "" if name in COMPARISONS else "few"
    return list(store.sql.query(report.query("lightningbus"), parameters=report.values(fields, run)).named_results())


def test_a_question_at_two_versions_is_one_task_of_a_comparison(store: StoreProcess) -> None:
    rows = ask(store, "compare", a="few", b="few", version_b="6", mode="eval")
    by_figure = {row["figure"]: row for row in rows}
    sums, mean = [(0.0, 4), (4.0, 4), (3.0, 4)], 7 / 12
    expected = sqrt(3 / 2 * sum((total - mean * num) ** 2 for total, num in sums)) / 12
    assert by_figure["standard error of the mean reward"]["a"] == pytest.approx(expected)
    assert (by_figure["versions"]["a"], by_figure["versions"]["b"]) == (2, 1)
    table = list(rows[0]), [tuple(row.values()) for row in rows]
    (note,) = list_notes(["few", "few"], [{}, {}], {"mode": "eval", "version_b": "6"}, table)
    assert note == "a, few: the evaluations of 2 versions are pooled; --param version_a=N chooses one"


def ask_side(store: StoreProcess, name: str, side: str) -> ResultTable:
    """Answer a comparison of both versions for one side, as where each run has a store of its own."""
    sides = {"a": "", "b": ""} | {side: "few"}
    rows = ask(store, name, **sides, version_a="0", version_b="6", mode="eval")
    return list(rows[0]), [tuple(row.values()) for row in rows]


def test_tasks_of_both_sides_are_paired_by_name_and_input(store: StoreProcess) -> None:
    together = ask(store, "compare_tasks", a="few", b="few", version_a="0", version_b="6", mode="eval")
    columns, rows = tasks = join_tasks(
        ask_side(store, "compare_tasks", "a"), ask_side(store, "compare_tasks", "b"), "few : few"
    )
    assert [dict(zip(columns, row, strict=True)) for row in rows] == together
    assert [(row["task"], row["difference"]) for row in together] == [("d", 0.5), ("a@b", 0.0), ("c", 0.0)]
    assert len({row["input_hash"] for row in together}) == 1, "each has the same input"

    figures = join_sides(ask_side(store, "compare", "a"), ask_side(store, "compare", "b"), "few : few")
    columns, rows = pair_tasks(figures, tasks)
    by_figure = {row[columns.index("figure")]: dict(zip(columns, row, strict=True)) for row in rows}
    assert by_figure["tasks in both"]["a"] == 3
    assert by_figure["mean reward of tasks in both"]["difference"] == pytest.approx(mean([0.5, 0, 0]))
    error = by_figure["standard error of the paired difference"]["difference"]
    assert error == pytest.approx(stdev([0.5, 0, 0]) / sqrt(3))


def test_tasks_of_one_side_or_of_another_input_are_no_pair() -> None:
    columns = ["run_id", "task", "input_hash", "rollouts_a", "reward_a", "rollouts_b", "reward_b", "difference"]
    a = [("", "both", "1", 2, 0.5, 0, None, None), ("", "changed", "1", 1, 1.0, 0, None, None)]
    b = [("", "changed", "2", 0, None, 1, 0.0, None), ("", "both", "1", 0, None, 4, 0.25, None)]
    tasks = join_tasks((columns, a), (columns, b), "x : y")
    assert [row[1:] for row in tasks[1]] == [
        ("both", "1", 2, 0.5, 4, 0.25, -0.25),
        ("changed", "1", 1, 1.0, 0, None, None),
        ("changed", "2", 0, None, 1, 0.0, None),
    ]
    assert explain_no_pairs(tasks) == "", "one is a pair"
    changed = join_tasks((columns, a[1:]), (columns, b[:1]), "x : y")
    assert explain_no_pairs(changed) == "no task is in both runs: 1 have the same name, and each another input"
    assert explain_no_pairs(join_tasks((columns, a[:1]), (columns, b[:1]), "x : y")) == ""
    figures = ["run_id", "figure", "a", "b", "difference"]
    _, rows = pair_tasks((figures, [("x : y", "standard error of the mean reward", 0.1, 0.1, 0.14)]), tasks)
    assert rows[1:] == [
        ("x : y", "tasks in both", 1.0, 1.0, 0.0),
        ("x : y", "mean reward of tasks in both", 0.5, 0.25, -0.25),
        ("x : y", "standard error of the paired difference", None, None, None),
    ]


def test_improved_tasks_are_of_training_and_of_evaluations(store: StoreProcess) -> None:
    rows = ask(store, "improved_tasks")
    changes = {(row["mode"], row["name"]): row["change"] for row in rows}
    assert changes == {
        ("train", "hard"): 1.0, ("train", "never"): 0.5, ("train", "easy"): 0.0, ("eval", "d"): 0.5,
        ("eval", "a@b"): 0.0, ("eval", "c"): 0.0,
    }  # fmt: skip
    assert [row["name"] for row in rows][:4] == ["hard", "never", "easy", "d"]
    assert {row["mode"] for row in ask(store, "improved_tasks", mode="eval")} == {"eval"}


def test_tasks_that_have_never_passed_come_first(store: StoreProcess) -> None:
    rows = ask(store, "hardest_tasks", mode="train")
    figures = [(row["name"], row["passes"], row["rollouts"], row["failed"], row["best"]) for row in rows]
    assert figures == [
        ("raises", 0, 2, 2, None),
        ("never", 0, 2, 0, 0.5),
        ("hard", 1, 2, 0, 1.0),
        ("easy", 2, 2, 0, 1.0),
    ]
    never = ask(store, "hardest_tasks", max_passes="0")
    assert [(row["mode"], row["name"]) for row in never] == [("train", "raises"), ("train", "never"), ("eval", "a@b")]
    half = ask(store, "hardest_tasks", max_passes="0", mode="train", solved="0.5")
    assert [row["name"] for row in half] == ["raises"]


@pytest.mark.parametrize(
    ("learners", "arguments", "expected"),
    [
        ([{"failed_rollouts": "mask"}, {"failed_rollouts": "zero"}], {}, "first: left out, second: 0"),
        ([{}, {"failed_rollouts": "zero"}], {}, "first: left out, second: 0"),
        ([{"failed_rollouts": "zero"}, {"failed_rollouts": "zero"}], {}, ""),
        ([{"failed_rollouts": "mask"}, {"failed_rollouts": "zero"}], {"mode": "eval"}, ""),
        ([{"reward": "style"}, {}], {}, "first: 'style', second: the main one"),
        ([{"reward": "style"}, {}], {"reward": "style"}, ""),
    ],
)
def test_runs_that_count_rollouts_differently_are_compared_with_a_note(
    learners: list[dict[str, str]], arguments: dict[str, str], expected: str
) -> None:
    table: tuple[list[str], list[Any]] = (["figure", "a", "b"], [("versions", 1.0, 1.0)])
    notes = list(list_notes(["first", "second"], [{"policy": each} for each in learners], arguments, table))
    assert (expected in notes[0] and len(notes) == 1) if expected else not notes
    if "0" in expected:
        assert "--param mode=eval" in notes[0]
