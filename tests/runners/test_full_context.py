"""A rollout that ends by a full context is cut: its calls and its reward are trained, and the agent is not blamed."""

import sys
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.chat_templates import ANYWHERE, RenderingEngine
from tests.runners.conftest import calls_of, ended, running, task

AGENT = {"entrypoint": "filling:solve"}
PROGRAM = {"command": [sys.executable, "filling.py"]}
GRADED = {**AGENT, "reward_fn": "filling:grade"}


@pytest.mark.parametrize(
    ("then", "own_reward", "agent", "reward"),
    [("fail", None, AGENT, 0.0), ("fail", None, PROGRAM, 0.0), ("fail", None, GRADED, 0.5),
     ("end", None, AGENT, 0.0), ("end", 0.25, AGENT, 0.25)],
)  # fmt: skip
async def test_a_full_context_ends_a_rollout_without_blame(
    bus: Bus, then: str, own_reward: float | None, agent: dict[str, Any], reward: float
) -> None:
    async with RenderingEngine(ANYWHERE, max_model_len=60).serving(bus), running(bus, **agent):
        await TaskPublisher(bus).publish_task(task(model="policy", input={"then": then, "reward": own_reward}))
        (batch,) = await ended(bus)
    assert batch.end is not None
    assert (batch.end.outcome, batch.end.reward) == ("ok", reward), batch.end
    assert batch.end.error.startswith("the rollout was cut by its full context: prompt is too long: ")
    assert len(calls_of(batch)) == 1


async def test_an_agent_that_made_room_and_then_failed_is_to_blame(bus: Bus) -> None:
    async with RenderingEngine(ANYWHERE, max_model_len=60).serving(bus), running(bus, **AGENT):
        await TaskPublisher(bus).publish_task(task(model="policy", input={"then": "compact"}))
        (batch,) = await ended(bus)
    assert batch.end is not None
    assert (batch.end.outcome, len(calls_of(batch))) == ("agent_error", 2) and "a fault of its own" in batch.end.error
