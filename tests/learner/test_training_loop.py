"""The training loop by itself, without a bus: how it ends."""

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.settings.own_function import OwnFunction
from lightningbus.learner.training_loop import TrainingLoop
from tests.factories import group, rollout
from tests.learner.conftest import builder_for, settings_for

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
