"""Several sets of tasks in one run: their shares, and group size, reward and credit of each."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lightningbus.learner.batching.rollout_dispositions import describe_missing_reward
from lightningbus.learner.dispatch.dispatch_mark import hash_shared_settings
from lightningbus.learner.dispatch.group_tasks import GroupTasks, find_input_id, tasks_of_group
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.selection.selector import TaskSelector
from lightningbus.learner.selection.task_sets import SetTurns, TaskSets
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import TaskInput, load_tasks
from lightningbus.tasks.task_source import NamedTaskSource
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for


def write(path: Path, count: int) -> str:
    path.write_text("".join(json.dumps({"input": number}) + "\n" for number in range(count)))
    return str(path)


def with_sets(tmp_path: Path, **changes: Any) -> LearnerSettings:
    """Three groups of `math` for one of `code`, which has its own group size, reward and credit."""
    math, code = write(tmp_path / "math.jsonl", 5), write(tmp_path / "code.jsonl", 3)
    sets = [
        {"name": "math", "path": math, "weight": 3},
        {"name": "code", "path": code, "group_size": 4, "reward": "tests", "credit": "last_call"},
    ]
    return settings_for(Path("m"), tasks=sets, group_size=2, **changes)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(1, 300))
def test_each_set_has_its_share_of_the_groups(weights: list[float], num_groups: int) -> None:
    turns = SetTurns(weights)
    places = [turns.at(number) for number in range(num_groups)]
    for index, weight in enumerate(weights):
        numbers = [number for place, number in places if place == index]
        assert numbers == [*range(len(numbers))]
        assert abs(len(numbers) - num_groups * weight / sum(weights)) <= len(weights)
    assert SetTurns(weights).at(num_groups - 1) == places[-1], "whichever number is asked for first"


def test_tasks_of_a_set_have_its_name_in_id_and_labels(tmp_path: Path) -> None:
    tasks = load_tasks(with_sets(tmp_path).task_sets)
    assert [task.id for task in tasks] == [f"math/{n}" for n in range(1, 6)] + [f"code/{n}" for n in range(1, 4)]
    assert [task.labels for task in tasks[4:6]] == [{"task_set": "math"}, {"task_set": "code"}]


def test_a_task_without_room_for_the_name_of_its_set_is_refused(tmp_path: Path) -> None:
    labels = {f"label{number}": "x" for number in range(16)}
    for fields, problem in ({"labels": labels}, "16 at most"), ({"id": "x" * 126}, "1 to 128 characters"):
        (tmp_path / "t.jsonl").write_text(json.dumps({"id": "a", "input": 1, **fields}))
        with pytest.raises(TaskFileError, match=rf"t.jsonl: task '.*' of set 'math': .*{problem}"):
            load_tasks([NamedTaskSource(name="math", path=str(tmp_path / "t.jsonl"))])


async def groups_of(settings: LearnerSettings, numbers: range) -> list[list[Task]]:
    tasks = load_tasks(settings.task_sets)
    selector = TaskSelector(tasks, settings)
    by_number = GroupTasks(tasks, settings, selector)
    groups = [DispatchedGroup(number=number, selection=await selector.select(number)) for number in numbers]
    return [await by_number.make(group) for group in groups]


async def test_groups_are_of_sets_by_weight_and_of_the_size_of_their_set(tmp_path: Path) -> None:
    settings = with_sets(tmp_path)
    groups = await groups_of(settings, range(20))
    assert Counter(tasks[0].labels["task_set"] for tasks in groups) == {"math": 15, "code": 5}
    assert {(tasks[0].labels["task_set"], len(tasks), tasks[0].group_size) for tasks in groups} == {
        ("math", 2, 2), ("code", 4, 4)
    }  # fmt: skip
    ids = [tasks[0].id for tasks in groups]
    assert len(set(ids)) == 20, "each task once a pass"
    assert {find_input_id(each, "run") for each in ids if "-p0" in each} == {
        task.id for task in load_tasks(settings.task_sets)
    }
    assert [tasks[0].id for tasks in await groups_of(settings, range(7, 9))] == ids[7:9], "at any place"
    assert settings.max_group_size == 4


async def test_tasks_go_to_the_agent_of_their_set(tmp_path: Path) -> None:
    settings = with_sets(tmp_path)
    math, code = settings.task_sets
    settings = settings.model_copy(
        update={"agent": "writer", "tasks": [math, code.model_copy(update={"agent": "tester"})]}
    )
    groups = await groups_of(settings, range(20))
    assert {(tasks[0].labels["task_set"], task.agent) for tasks in groups for task in tasks} == {
        ("math", "writer"), ("code", "tester")
    }  # fmt: skip
    sets = TaskSets(settings)
    assert [sets.of_turn(number).agent for number in range(20)] == [tasks[0].agent for tasks in groups]
    assert settings.agents == {"agent": "writer", "tasks.code.agent": "tester"}
    assert "agent" not in settings.model_copy(update={"tasks": settings.task_sets[1:]}).agents, "nobody needs it"


async def test_a_sampler_selects_within_the_set_whose_turn_it_is(tmp_path: Path) -> None:
    groups = await groups_of(with_sets(tmp_path, task_selection={"sampler": "difficulty"}), range(40))
    assert Counter(tasks[0].labels["task_set"] for tasks in groups) == {"math": 30, "code": 10}
    assert {tasks[0].id.rpartition("-")[2][0] for tasks in groups} == {"g"}
    assert len({tasks[0].id for tasks in groups}) == 40


def members(task: str) -> RolloutGroup:
    calls = [model_call(0, [1, 2], [3, 4]), model_call(1, [1, 2, 3, 4, 5], [6])]
    return group(task, *(rollout(task, sample, float(sample % 2), calls=calls) for sample in range(4)))


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus_baseline"])
def test_credit_is_by_the_method_of_the_set(tmp_path: Path, estimator: str) -> None:
    changes = {"algorithm": {"adv_estimator": estimator}}
    both = builder_for(with_sets(tmp_path, **changes))
    batch = both.build([members("code/1@run-p0"), members("math/1@run-p0")], 0)
    alone = {
        "math": builder_for(settings_for(Path("m"), **changes)).build([members("math/1@run-p0")], 0),
        "code": builder_for(settings_for(Path("m"), credit="last_call", **changes)).build(
            [members("code/1@run-p0")], 0
        ),
    }
    expected = alone["math"].advantages | alone["code"].advantages
    assert batch.advantages == pytest.approx(expected)
    assert batch.advantages["code/1@run-p0.1", 0] == 0.0 != batch.advantages["math/1@run-p0.1", 0]


def test_tasks_of_a_set_name_its_own_reward_where_one_model_is_trained(tmp_path: Path) -> None:
    settings = with_sets(tmp_path, reward="answer")
    inputs = [TaskInput("math/1", 1), TaskInput("code/1", 1)]
    assert [tasks_of_group(each, "p0", settings)[0].reward_name for each in inputs] == [None, "tests"]
    two = settings.model_copy(update={"role_models": {"checker": "checker"}})
    assert tasks_of_group(inputs[1], "p0", two)[0].reward_name is None, "the other model is trained on another"


def test_the_reward_of_a_set_is_named_where_it_is_missing(tmp_path: Path) -> None:
    sets = TaskSets(with_sets(tmp_path, reward="answer"))
    names = [
        describe_missing_reward(sets.find_settings(task)) for task in ("code/1@run-p0", "math/1@run-p0", "foreign")
    ]
    assert names == ["no reward 'tests'", "no reward 'answer'", "no reward 'answer'"]


def test_learners_of_a_run_share_weights_and_sizes_of_sets(tmp_path: Path) -> None:
    settings = with_sets(tmp_path)
    heavier = settings.model_copy(
        update={"tasks": [settings.task_sets[0], settings.task_sets[1].model_copy(update={"weight": 2})]}
    )
    assert hash_shared_settings(settings, []) != hash_shared_settings(heavier, [])


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        (5, "5 is not a path, the fields of a source, or a list of sets"),
        ([], "a list of tasks has sets with `name` and `path`, at least one"),
        (["t.jsonl"], "a list of tasks has sets with `name` and `path`, at least one"),
        ([{"path": "a"}], "set 1: name: it is needed"),
        (
            [{"name": "a", "path": "a"}, {"path": "b", "zzz": 2}],
            "set 2: zzz: no such setting; known are agent, .*weight",
        ),
        ([{"name": "a", "path": "a"}, {"name": "a", "path": "b"}], "two sets of tasks have the same name"),
        ([{"name": "a", "path": "a", "wieght": 2}], "wieght: no such setting; did you mean .*weight"),
        ([{"name": "a", "path": "a", "group_size": 1}], "group_size must be at least 2"),
    ],
)
def test_sets_that_cannot_be_used_are_refused(sets: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        settings_for(Path("m"), tasks=sets)


def test_settings_with_sets_are_read_as_they_were_written(tmp_path: Path) -> None:
    settings = with_sets(tmp_path)
    assert LearnerSettings.model_validate_json(settings.model_dump_json()) == settings
