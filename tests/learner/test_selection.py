"""The choice of tasks by their results: what a sampler expects of a task, and in which turns tasks come."""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lightningbus.learner.checkpointing.journal import CheckpointMark, GroupRecord, Journal
from lightningbus.learner.checkpointing.resume import note_selected
from lightningbus.learner.dispatch.group_tasks import find_input_id
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.selection.difficulty import (
    LEAST_OPENNESS,
    Selection,
    TaskResults,
    add_results,
    estimate_openness,
)
from lightningbus.learner.selection.sampler import WeightedTurns
from lightningbus.learner.selection.selector import TaskSelector
from lightningbus.learner.selection.task_order import shuffle
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.tasks.task_loading import TaskInput
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for

SIZE = 8


def selecting(**changes: Any) -> LearnerSettings:
    rules = {"sampler": "difficulty", **changes.pop("task_selection", {})}
    return settings_for(Path("m"), tasks=Path("t.jsonl"), task_selection=rules, **changes)


def inputs(count: int) -> list[TaskInput]:
    return [TaskInput(f"q{number}", number, {"kind": "odd" if number % 2 else "even"}) for number in range(count)]


def test_openness_is_by_bayes_rule() -> None:
    """B(2, 10) / B(2, 2) = 6 / 110 for eight failures, and B(4, 8) / B(2, 2) = 6 / 1320 for two passes and six."""
    all_failed = 0.8 * 6 / 110
    assert estimate_openness(0, 8) == pytest.approx(all_failed / (all_failed + 0.1 + 0.1 * 0.001**8))
    mixed = 0.8 * 6 / 1320
    assert estimate_openness(2, 6) == pytest.approx(mixed / (mixed + 0.1 * 0.001**2))


def test_the_more_rollouts_agree_the_less_a_task_may_be_open() -> None:
    weights = [estimate_openness(0, num_failed) for num_failed in range(0, 50, 4)]
    assert weights == sorted(weights, reverse=True) and weights[0] == 1 and weights[-1] == LEAST_OPENNESS
    assert weights == [estimate_openness(num_passed, 0) for num_passed in range(0, 50, 4)]
    assert estimate_openness(1, 7) > 0.75 and estimate_openness(4, 4) > 0.99


def test_a_solved_task_counts_as_trivial_once_its_failures_are_long_ago() -> None:
    results = add_results(TaskResults(), [0.0] * 4 + [1.0] * 4, 1.0, 0.7)
    weights = []
    for _ in range(12):
        weights.append(estimate_openness(results.passed, results.failed))
        results = add_results(results, [1.0] * 8, 1.0, 0.7)
    assert weights == sorted(weights, reverse=True) and min(weights[:3]) > 0.9 and weights[-1] < 0.1


def test_openness_is_a_number_however_many_results_there_are() -> None:
    assert estimate_openness(1e6, 1e6) == 1 and estimate_openness(0, 1e6) == LEAST_OPENNESS


rewards = st.lists(st.sampled_from([0.0, 0.4, 1.0, 2.0]), max_size=SIZE)


@settings(max_examples=50)
@given(st.lists(rewards, max_size=60), st.sampled_from([0.0, 0.5, 0.7, 0.9]))
def test_no_results_make_a_task_worthless_and_one_mixed_group_brings_it_back(groups: Any, memory: float) -> None:
    results = TaskResults()
    for each in groups:
        results = add_results(results, each, 1.0, memory)
        assert LEAST_OPENNESS <= estimate_openness(results.passed, results.failed) <= 1
    assert results.passed + results.failed <= SIZE / (1 - memory) + 1e-9
    results = add_results(results, [0.0, 1.0] * 4, 1.0, memory)
    assert estimate_openness(results.passed, results.failed) > 0.9


def turns(num_tasks: int, seed: int) -> WeightedTurns:
    return WeightedTurns(shuffle(num_tasks, seed, 0), seed)


def play(all_turns: WeightedTurns, weights: Any, begin: int, end: int) -> list[int]:
    taken = []
    for number in range(begin, end):
        taken.append(all_turns.next(weights, number))
        all_turns.note(taken[-1], number)
    return taken


@given(st.integers(1, 50), st.integers(0, 5))
def test_with_equal_weights_every_task_comes_once_before_any_comes_twice(num_tasks: int, seed: int) -> None:
    taken = play(turns(num_tasks, seed), np.ones(num_tasks), 0, num_tasks)
    assert taken == [*shuffle(num_tasks, seed, 0)]


def test_shares_of_turns_are_in_proportion_to_weights() -> None:
    weights = np.array([1.0, 1.0, 0.5, 0.25, 0.1, 0.05])
    counts = Counter(play(turns(6, 0), weights, 0, 3000))
    shares = np.array([counts[index] for index in range(6)]) / 3000
    assert shares == pytest.approx(weights / weights.sum(), abs=0.015)


@settings(max_examples=30)
@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=8), st.integers(0, 3), st.integers(0, 99))
def test_no_task_waits_for_ever_whatever_the_weights_become(lowest: list[float], seed: int, weights_seed: int) -> None:
    """Weights change at each turn; a task waits no longer than its lowest weight allows."""
    num_tasks, rng = len(lowest), np.random.default_rng(weights_seed)
    all_turns, last = turns(num_tasks, seed), [0] * num_tasks
    for number in range(40 * num_tasks):
        weights = rng.uniform(lowest, 1.0)
        index = all_turns.next(weights, number)
        all_turns.note(index, number)
        last[index] = number
        for task, low in enumerate(lowest):
            assert number - last[task] <= 2 * (num_tasks + 1) / low + num_tasks + 1


async def play_selector(selector: TaskSelector, begin: int, end: int) -> list[Selection]:
    """Groups of which tasks 0 to 3 always fail, 4 to 6 always pass, and the others do either."""
    selections = []
    for number in range(begin, end):
        selection = await selector.select(number)
        assert selection is not None
        kind = int(selection.task[1:])
        passes = 0 if kind < 4 else SIZE if kind < 7 else SIZE // 2
        selector.add(selection.task, [1.0] * passes + [0.0] * (SIZE - passes))
        selections.append(selection)
    return selections


async def test_open_tasks_come_often_and_hopeless_and_trivial_ones_seldom() -> None:
    selections = await play_selector(TaskSelector(inputs(10), selecting()), 0, 300)
    counts = Counter(selection.task for selection in selections)
    open_share = sum(counts[f"q{number}"] for number in (7, 8, 9)) / 300
    assert open_share > 0.7 and min(counts.values()) > 3
    last = selections[-1]
    assert last.share == pytest.approx(last.weight / sum_of_weights(selections), rel=0.2)


async def test_every_task_has_its_first_turn_before_one_has_a_second() -> None:
    for seed in range(5):
        selections = await play_selector(TaskSelector(inputs(10), selecting(seed=seed)), 0, 10)
        assert len({selection.task for selection in selections}) == 10


async def test_a_hopeless_task_that_becomes_solvable_is_found_within_its_bound_and_comes_often_then() -> None:
    """Eleven of twelve tasks always fail; then one of them begins to pass."""
    num_tasks, opened_at = 12, 300
    selector, turns_of_it = TaskSelector(inputs(num_tasks), selecting()), []
    for number in range(opened_at + 1000):
        selection = await selector.select(number)
        assert selection is not None
        is_open = selection.task == "q0" or (selection.task == "q1" and number >= opened_at)
        selector.add(selection.task, [float(is_open), 0.0] * 4)
        if selection.task == "q1":
            turns_of_it.append(number)
    before = [number for number in turns_of_it if number < opened_at]
    assert 3 <= len(before) < opened_at / num_tasks
    found_at = next(number for number in turns_of_it if number >= opened_at)
    assert found_at - before[-1] <= 2 * (num_tasks + 1) / LEAST_OPENNESS + num_tasks + 1
    after = [number for number in turns_of_it if number > found_at]
    assert len(after) > (opened_at + 1000 - found_at) / 4


def sum_of_weights(selections: list[Selection]) -> float:
    return sum({selection.task: selection.weight for selection in selections}.values())


@settings(max_examples=15)
@given(st.integers(0, 120))
def test_a_restart_at_any_place_goes_on_with_the_same_tasks(place: int) -> None:
    """A selector goes on from the results of a checkpoint and the groups of the journal since."""

    async def compare() -> None:
        whole = await play_selector(TaskSelector(inputs(10), selecting(seed=3)), 0, 140)
        first = TaskSelector(inputs(10), selecting(seed=3))
        await play_selector(first, 0, place)
        checkpoint = first.snapshot()
        ahead = [await first.select(number) for number in range(place, place + 5)]
        dispatched = [DispatchedGroup(number=place + late, selection=each) for late, each in enumerate(ahead)]
        second = TaskSelector(inputs(10), selecting(seed=3))
        second.restore(note_selected(checkpoint, dispatched))
        for number in range(place + 5, place + 20):
            chosen, again = await first.select(number), await second.select(number)
            assert chosen is not None and again is not None and chosen.task == again.task
        third = TaskSelector(inputs(10), selecting(seed=3))
        third.restore(checkpoint)
        rest = await play_selector(third, place, 140)
        assert [each.task for each in rest] == [each.task for each in whole[place:]]

    asyncio.run(compare())


def test_the_journal_keeps_what_was_selected(tmp_path: Path) -> None:
    selection = Selection(task="q1", passed=1.5, failed=2.0, weight=0.5, share=0.1, decided_at_ns=7)
    chosen = DispatchedGroup(number=4, selection=selection)
    journal = Journal(tmp_path)
    mark = journal.add_mark()
    journal.record_group(chosen, 0)
    again = Journal(tmp_path)
    again.load()
    assert [*again.since(mark)] == [GroupRecord(chosen)] and again.since(mark)[0] != CheckpointMark(mark)


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


async def test_a_sampler_of_the_users_sees_results_and_labels_and_gives_weights(user_module: Any) -> None:
    seen: list[Any] = []

    def only_odd_ones(tasks: Any) -> list[float]:
        seen[:] = tasks
        return [float(task.labels["kind"] == "odd") for task in tasks]

    user_module.only_odd_ones = only_odd_ones
    selector = TaskSelector(inputs(10), selecting(task_selection={"sampler": "mine:only_odd_ones"}, group_size=4))
    selections = await play_selector(selector, 0, 20)
    assert {int(each.task[1:]) % 2 for each in selections} == {1}
    assert {each.share for each in selections} == {0.2}
    assert [(task.id, task.group_size) for task in seen] == [(f"q{number}", 4) for number in range(10)]
    assert (seen[1].passed, seen[1].failed > 8, seen[0].num_groups_since) == (0.0, True, 29)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([0.0] * 3, "returned a negative weight, or none above 0"),
        ([1.0, -1.0, 1.0], "returned a negative weight, or none above 0"),
        ([1.0], "returned 1 values for 3 tasks"),
        ([1.0, float("nan"), 1.0], "returned values that are not finite, 1 of 3 for tasks: nan"),
    ],
)
async def test_weights_that_cannot_be_used_end_the_learner(
    user_module: Any, weights: list[float], problem: str
) -> None:
    user_module.weigh = lambda tasks: weights
    selector = TaskSelector(inputs(3), selecting(task_selection={"sampler": "mine:weigh"}))
    with pytest.raises(LearnerError, match=f"^task_selection.sampler: mine:weigh {problem}"):
        await selector.select(0)


async def test_with_the_uniform_sampler_nothing_is_selected_and_no_results_are_kept() -> None:
    selector = TaskSelector(inputs(3), settings_for(Path("m")))
    selector.add("q1", [1.0, 0.0])
    assert await selector.select(0) is None and selector.snapshot() == {} and not selector.is_active


def test_the_task_in_the_file_is_found_by_the_published_one() -> None:
    assert find_input_id("a@b@run-g17r1", "run") == "a@b" and find_input_id("foreign", "run") == ""
    assert find_input_id("a@other-p0", "run") == ""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task_selection": {"sampler": "difficult"}}, "task_selection.sampler: 'difficult' is not known"),
        ({"tasks": None}, "task_selection needs `tasks`"),
        (
            {"task_selection": {"replace_without_signal": True}, "algorithm": {"adv_estimator": "gae"}},
            "with gae a group of equal rewards teaches too",
        ),
        (
            {"task_selection": {"replace_without_signal": True}, "teacher": {"url": "http://t"}},
            "leave it out with `teacher`",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], problem: str) -> None:
    fields = {"tasks": Path("t.jsonl"), "task_selection": {"sampler": "difficulty"}, **changes}
    with pytest.raises(ValidationError, match=problem):
        settings_for(Path("m"), **fields)


@pytest.mark.parametrize(
    ("scores", "has_signal"),
    [([0.1] * 8, False), ([0.3 - 0.2, 0.1] * 4, False), ([0.0, 0.0, 1e-3], True), ([1.0], False)],
)
def test_a_group_has_signal_where_its_batch_has(scores: list[float], has_signal: bool) -> None:
    calls = [model_call(0, [1, 2], [3, 4])]
    members = group("a", *(rollout("a", number, score, calls=calls) for number, score in enumerate(scores)))
    builder = builder_for(settings_for(Path("m")))
    assert builder.has_signal(members) is has_signal
    if len(scores) > 1:
        assert builder.build([members], 0).metrics["groups/without_signal"] == float(not has_signal)
