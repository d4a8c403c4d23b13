"""Several teachers: each call is scored by the first that it fits, and one that is away holds up its own rollouts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.learner import find_blocker
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.teacher.score_file import add_recorded_scores
from lightningbus.learner.teacher.teachers import Teachers
from lightningbus.tasks.task_loading import TaskInput
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for, tiny_model
from tests.learner.scripted_teacher import ScriptedTeacher
from tests.learner.test_unbuildable import Loop, fake_trainer
from tests.polling import HANG_SECONDS

TASKS = [TaskInput("math/1", 1, {"task_set": "math"}), TaskInput("code/1", 1, {"task_set": "code"})]
BY_SET = [{"name": "math", "labels": {"task_set": "math"}}, {"name": "rest"}]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two teachers of the same tokens and other weights."""
    widths = (64, 48)
    return [tiny_model(tmp_path_factory.mktemp("teacher"), vocab_size=320, intermediate_size=width) for width in widths]


@asynccontextmanager
async def two_servers(paths: Sequence[Path]) -> AsyncIterator[list[ScriptedTeacher]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedTeacher(path)) for path in paths]


def taught(
    path: Path, directory: Path, servers: Sequence[ScriptedTeacher], teachers: Sequence[dict[str, Any]], **changes: Any
) -> LearnerSettings:
    """Settings of a learner whose teachers are at these servers, in order."""
    fields = [{"url": server.url, **each} for each, server in zip(teachers, servers, strict=True)]
    return settings_for(path, checkpoint_dir=directory, tasks="tasks.jsonl", teacher=fields, **changes)


def address(teacher: TeacherSettings) -> str | None:
    return teacher.url


def rollout_of(name: str, sample: int, *calls: Any) -> Rollout:
    """A rollout of a task of a set, as the learner dispatches it."""
    return rollout(f"{name}/1@run-p0", sample, float(sample), samples=2, calls=calls or None)


async def test_calls_are_scored_by_the_first_teacher_of_their_role(paths: list[Path], tmp_path: Path) -> None:
    calls = [
        model_call(0, [1, 2], [3, 4], role="writer"),
        model_call(1, [1, 2, 3, 4], [5], role="checker"),
        model_call(2, [1, 2, 3, 4, 5], [6, 7, 8], role="writer"),
        model_call(3, [9], [8], role="other"),
    ]
    async with two_servers(paths) as servers:
        roles = [{"name": "a", "roles": ["writer"]}, {"name": "b", "roles": ["checker", "writer"]}]
        settings = taught(paths[0], tmp_path, servers, roles)
        teachers = Teachers(settings, address)
        groups = [group("code/1@run-p0", *(rollout_of("code", sample, *calls) for sample in range(2)))]
        await teachers.score(groups)
        await teachers.close()
        assert [list(server.counts) for server in servers] == [[(1, 2, 3, 4, 5, 6, 7, 8)], [(1, 2, 3, 4, 5)]]
        whole, part = servers[0].score([1, 2, 3, 4, 5, 6, 7, 8]), servers[1].score([1, 2, 3, 4, 5])
        scores = groups[0].rollouts[0].teacher_scores
        np.testing.assert_allclose(scores["a"].logprobs, [*whole[1:3], np.nan, *whole[4:7], np.nan], atol=1e-5)
        np.testing.assert_allclose(scores["b"].logprobs, [np.nan, np.nan, part[3], *[np.nan] * 4], atol=1e-5)
        batch = builder_for(settings).build(groups, 0)
    names = ("tokens", "tokens/scored", "tokens/scored/a", "tokens/scored/b")
    assert [batch.metrics[name] for name in names] == [14, 12, 10, 2]
    replayed = [group("code/1@run-p0", *(rollout_of("code", sample, *calls) for sample in range(2)))]
    add_recorded_scores(replayed, tmp_path, settings.teachers)
    assert builder_for(settings).build(replayed, 0).compute_sha256() == batch.compute_sha256()


async def test_a_task_is_scored_by_the_teacher_of_its_labels_once(paths: list[Path], tmp_path: Path) -> None:
    rollouts = [rollout_of(name, sample) for name in ("math", "code") for sample in range(2)]
    async with two_servers(paths) as servers:
        settings = taught(paths[0], tmp_path, servers, BY_SET)
        for _ in range(2):  # the second time after a restart
            teachers = Teachers(settings, address, TASKS)
            groups = [group("math", *rollouts[:2]), group("code", *rollouts[2:])]
            await teachers.score(groups)
            await teachers.close()
        assert [set(server.counts.values()) for server in servers] == [{2}, {2}]  # two rollouts of the same tokens
    assert [[list(item.teacher_scores) for item in each.rollouts] for each in groups] == [
        [["math"]] * 2,
        [["rest"]] * 2,
    ]


async def test_a_task_that_no_teacher_fits_is_not_scored(paths: list[Path], tmp_path: Path) -> None:
    async with two_servers(paths) as servers:
        settings = taught(paths[0], tmp_path, servers[:1], BY_SET[:1])
        teachers = Teachers(settings, address, TASKS)
        groups = [group("code", rollout_of("code", 0), rollout_of("code", 1)), group("x", rollout("x", 0, 1.0))]
        await teachers.score(groups)
        await teachers.close()
        assert not servers[0].counts and not any(item.teacher_scores for each in groups for item in each.rollouts)
    assert builder_for(settings).build(groups[:1], 0).metrics["tokens/scored"] == 0


async def test_a_teacher_that_is_away_holds_up_its_own_groups_alone(paths: list[Path], tmp_path: Path) -> None:
    """Groups of its neighbour are trained first; its own count as unfinished until it is back."""
    async with two_servers(paths) as servers, asyncio.timeout(HANG_SECONDS):
        ended = asyncio.Event()
        teachers = Teachers(taught(paths[0], tmp_path, servers, BY_SET), address, TASKS, ended.set)
        loop = Loop(fake_trainer())
        training, groups = loop.training, loop.groups
        training.teachers = teachers
        loop.dispatcher.order_by_deadline, loop.dispatcher.find_awaited = list, Mock(return_value=[])
        loop.dispatcher.find_replacements_of_others = Mock(return_value=[])
        loop.dispatcher.missing_version = None
        servers[0].is_away = True
        tasks = [f"{name}/1@run-p{number}" for number in range(2) for name in ("math", "code")]
        for task in tasks:
            for sample in range(2):
                item = rollout(task, sample, float(sample), samples=2)
                groups.add(item, 0.0)
                teachers.begin(item)
        await servers[0].refused.wait()
        while teachers.find_waiting(groups.ready) != {tasks[0], tasks[2]}:
            ended.clear()
            await ended.wait()
        assert teachers.problem.startswith("math: ") and find_blocker(training) == "", "others can be trained"
        popped = await training._pop_groups()
        assert [each.task_id for each in popped] == [tasks[1], tasks[3]]
        training.phase = "training"
        assert find_blocker(training) == "", "others are trained"
        training.phase = "waiting"
        batch, closed = loop.dispatcher.find_awaited.call_args.args
        assert batch == closed == {tasks[1], tasks[3]}
        await teachers.score(popped)
        assert all(item.teacher_scores for each in popped for item in each.rollouts)
        assert await training._pop_groups() == [] and teachers.problem.startswith("math: ")
        assert find_blocker(training) == f"a teacher: {teachers.problem}"
        (held_up, other), groups.ready = groups.ready, groups.ready[:1]
        assert find_blocker(training) == "", "rollouts are missing too, and are under way"
        training.slow_groups.awaited = [held_up.task_id]
        assert find_blocker(training).startswith("a teacher: "), (
            "and the next step would put the group beyond the bound"
        )
        training.slow_groups.awaited, groups.ready = [], [held_up, other]
        servers[0].is_away = False
        while teachers.find_waiting(groups.ready):
            ended.clear()
            await ended.wait()
        assert [each.task_id for each in await training._pop_groups()] == [tasks[0], tasks[2]]
        assert teachers.problem == ""
        await teachers.close()


async def test_scores_that_come_while_a_checkpoint_is_written_are_not_missed() -> None:
    """The step goes on, though nothing else ends any more."""
    loop = Loop(fake_trainer())
    training, consumer, ended = loop.training, loop.training.consumer, asyncio.Event()
    consumer.attempt_ended, consumer.expire = ended, Mock(return_value=None)  # type: ignore[method-assign]
    loop.dispatcher.order_by_deadline, loop.dispatcher.find_awaited = list, Mock(return_value=[])
    loop.dispatcher.find_replacements_of_others = loop.dispatcher.take_surplus = Mock(return_value=[])
    waiting = {"a", "b"}
    training.teachers = Mock(find_waiting=Mock(side_effect=lambda groups: set(waiting)))

    async def write_checkpoint() -> None:
        waiting.clear()
        ended.set()

    training._checkpoint_if_filling = write_checkpoint  # type: ignore[method-assign]
    for task in ("a", "b"):
        for sample in range(2):
            loop.groups.add(rollout(task, sample, float(sample), samples=2), 0.0)
    async with asyncio.timeout(HANG_SECONDS):
        assert [each.task_id for each in await training._next_groups()] == ["a", "b"]


async def test_each_teacher_has_its_own_limit_and_tokenizer_check(paths: list[Path], tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other", vocab_size=64)
    from tests.learner.conftest import tiny_tokenizer

    tokenizer = tiny_tokenizer(other)
    tokenizer.add_tokens(["def"])
    tokenizer.save_pretrained(other)
    async with two_servers([paths[0], other]) as servers, asyncio.timeout(HANG_SECONDS):
        fields = [{**BY_SET[0], "max_requests": 1}, BY_SET[1]]
        teachers = Teachers(taught(paths[0], tmp_path / "c", servers, fields), address, TASKS)
        with pytest.raises(LearnerError, match="has another tokenizer than"):
            await teachers.check()
        items = [rollout_of("math", sample, model_call(0, [1, 2], [3 + sample])) for sample in range(4)]
        await teachers.score(groups := [group("math", *items)])
        await teachers.close()
    assert servers[0].most_open == 1 and len(servers[0].counts) == 4 and not servers[1].counts
    assert all(item.teacher_scores for item in groups[0].rollouts)


def test_labels_that_no_task_has_are_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, checkpoint_dir=tmp_path, tasks="t", teacher={"url": "u", "labels": {"set": "no"}})
    with pytest.raises(LearnerError, match=r"'teacher' would score nothing: no task has the labels \{'set': 'no'\}"):
        Teachers(settings, address, TASKS)


@pytest.mark.parametrize(
    ("teacher", "sentence"),
    [
        ([], "has the fields of at least one"),
        (3, "3 is neither the fields of a teacher nor a list"),
        ([{"url": "u"}, {"url": "v"}], "two teachers have the name 'teacher': give each a `name`"),
        (
            [{"name": "a", "url": "u"}, {"name": "b", "url": "v"}],
            "'a' scores every call, so 'b' after it would score none",
        ),
        ([{"name": "a", "url": "u", "label": {}}], "label: no such setting; did you mean 'labels'"),
        ([{"name": "a b", "url": "u"}], "name: "),
        ([{"name": "a"}], "name the teacher by `url`, or by `model`"),
        ([{"name": "a", "model": "policy", "roles": ["x"]}, {"name": "b", "url": "u"}], "is the model that is trained"),
        ({"url": "u", "labels": {"a": "b"}}, "teacher.labels needs `tasks`"),
        (
            [
                {"name": "a", "url": "u", "roles": ["x"], "top_k": 2},
                {"name": "b", "url": "u", "top_k": 2, "direction": "forward"},
            ],
            "two teachers have different directions",
        ),
    ],
)
def test_settings_of_no_teachers_are_refused(teacher: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LearnerSettings.model_validate({"model_path": "m", "teacher": teacher})


def test_one_teacher_stays_a_mapping() -> None:
    settings = LearnerSettings.model_validate({"model_path": "m", "teacher": {"url": "u"}})
    assert settings.teacher == settings.teachers[0] and settings.model_dump()["teacher"]["url"] == "u"
    assert LearnerSettings.model_validate_json(settings.model_dump_json()) == settings
    assert LearnerSettings.model_validate({"model_path": "m", "teacher": None}).teachers == []
