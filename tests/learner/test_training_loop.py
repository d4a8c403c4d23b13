"""The training loop by itself, without a bus: how it ends."""

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from lightningbus.learner.accounting import ExcludedRollouts
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.groups import GroupBuffer
from lightningbus.learner.settings.own_function import OwnFunction
from lightningbus.learner.training_loop import TrainingLoop
from tests.factories import group, rollout
from tests.learner.conftest import builder_for, settings_for

REPLACING = {
    "tasks": "tasks.jsonl",
    "group_size": 2,
    "groups_per_step": 1,
    "task_selection": {"replace_without_signal": True},
}
GROUP = group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))


def broken(*arguments: Any) -> Any:
    raise IndexError("no such call")


async def call(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def make_loop(changes: dict[str, Any], **parts: Any) -> TrainingLoop:
    settings = settings_for(Path("m"), **changes)
    required = ("bus", "state", "consumer", "dispatcher", "recovery", "trainer", "committer", "excluded", "nodes")
    assert {field.name for field in fields(TrainingLoop)} >= set(required)
    mocks: dict[str, Any] = {name: Mock() for name in required}
    audits = Mock(refresh=AsyncMock(), state=Mock(verdicts=()))
    mocks |= {"settings": settings, "builder": builder_for(settings), "audits": audits, "in_thread": call, **parts}
    mocks["state"].version = 0
    return TrainingLoop(**mocks)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [({"credit": "mine:broken"}, "credit.method"), ({"algorithm": {"adv_estimator": "mine:broken"}}, "algorithm.*")],
)
async def test_an_error_in_a_users_own_function_of_the_batch_ends_the_learner(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, changes: Any, setting: str
) -> None:
    module: Any = ModuleType("mine")
    module.broken = broken
    monkeypatch.setitem(sys.modules, "mine", module)
    with pytest.raises(LearnerError, match=rf"^{setting}: mine:broken raised IndexError: no such call \({__file__}, "):
        await make_loop(changes)._train_on([GROUP], 0.0)
    assert 'raise IndexError("no such call")' in caplog.text, "the log has the traceback"


async def test_an_error_in_a_users_own_loss_ends_the_learner(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Mock(step=OwnFunction("actor.policy_loss", "mine:broken", broken))
    with pytest.raises(LearnerError, match=r"^actor.policy_loss: mine:broken raised IndexError: no such call"):
        await make_loop({}, trainer=trainer)._train_on([GROUP], 0.0)
    assert 'raise IndexError("no such call")' in caplog.text


def end_group(buffer: GroupBuffer, task: str, *rewards: float) -> None:
    for sample, reward in enumerate(rewards):
        buffer.add(rollout(task, sample, reward, samples=2), 0.0)


async def test_groups_that_end_while_another_one_is_checked_are_checked_too() -> None:
    settings, buffer = settings_for(Path("m"), **REPLACING), GroupBuffer(60.0, lambda rollout: True)
    arrivals = [("of another learner", 0.0, 1.0), ("without signal", 0.0, 0.0)]

    async def check(work: Callable[..., Any], *arguments: Any) -> Any:
        """Check a group, while the group of another task ends."""
        if arrivals:
            end_group(buffer, *arrivals.pop())
        return work(*arguments)

    end_group(buffer, "first", 1.0, 1.0)
    consumer, dispatcher = Mock(groups=buffer), Mock()
    dispatcher.find_replacements_of_others = lambda ready: [
        group.task_id for group in ready if group.task_id == "of another learner"
    ]
    loop = make_loop(
        REPLACING, bus=AsyncMock(), consumer=consumer, dispatcher=dispatcher,
        excluded=ExcludedRollouts(consumer, settings), in_thread=check,
    )  # fmt: skip
    loop.slow_groups = Mock(choose=lambda ready, closed: ready)
    assert await loop._pop_groups() == []
    assert not arrivals and not buffer.ready
