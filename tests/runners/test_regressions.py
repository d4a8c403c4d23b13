"""The known defects of Agent Lightning's gateway and queues, each shown not to be ours.

The numbers are those of its defects; 17 stands in `tests/store/test_regressions.py`, those of training in
`tests/learner/test_regressions.py`.
"""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.node_state import TRANSITIONS, State
from lightningbus.bus.streams.specs import runner_consumer
from lightningbus.graders.records import FAILED
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.subjects import TASKS
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ScriptedEngine, calls_of, ended, running, task

ROOT = Path(__file__).resolve().parents[2]


async def test_03_every_choice_of_a_call_is_recorded(bus: Bus, engine: ScriptedEngine) -> None:
    """``n=2``: two choices, two calls in the record."""
    engine.choices = 2
    async with running(bus, entrypoint="plain:asks_for_two"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    calls = calls_of(batch)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    assert [call.index for call in calls] == [0, 1] and calls[0].prompt_ids == calls[1].prompt_ids


async def test_09_an_agent_never_sees_the_gap_while_a_version_is_registered(bus: Bus, engine: ScriptedEngine) -> None:
    """A node that serves nobody for a moment is waited for; a client without retries sees one answer."""
    engine.faults = ["503"] * 3
    async with running(bus, entrypoint="plain:asks"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0)
    assert len(engine.requests) == 4


async def test_11_more_than_fifty_rollouts_run_at_once_and_each_ends_at_its_deadline(bus: Bus) -> None:
    """The queue hands out as many as there are slots, and a deadline is the runner's own to keep."""
    await bus.ensure_consumer(runner_consumer("default", "eval"))
    for number in range(64):
        await TaskPublisher(bus).publish_task(task(id=f"t{number}"))
    async with asyncio.timeout(HANG_SECONDS), bus.pull(runner_consumer("default", "eval"), slots=64) as puller:
        kept = [await anext(puller) for _ in range(64)]
        assert len({message.sequence for message in kept}) == 64
        for message in kept:
            await message.ack()
    async with running(bus, entrypoint="plain:sleeps"):
        await TaskPublisher(bus).publish_task(task(id="late", deadline=0.5))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "timeout"


async def test_16_a_task_whose_taker_dies_before_it_has_noted_it_is_handed_out_again(bus: Bus, nats_url: str) -> None:
    """Taking is no step of its own: until the result is acknowledged the task is the queue's."""
    await bus.ensure_consumer(runner_consumer("default", "eval", ack_wait=1.0))
    await TaskPublisher(bus).publish_task(task())
    take = (
        "import asyncio, os, sys\n"
        "from lightningbus.bus.client import Bus\n"
        "from lightningbus.bus.streams.specs import runner_consumer\n"
        "async def main():\n"
        "    async with Bus.connect(sys.argv[1], name='taker') as bus:\n"
        "        async with bus.pull(runner_consumer('default', 'eval', ack_wait=1.0), slots=1) as puller:\n"
        "            await anext(puller); os._exit(9)\n"
        "asyncio.run(main())"
    )
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", take, nats_url], timeout=HANG_SECONDS)
    assert died.returncode == 9
    async with (
        asyncio.timeout(HANG_SECONDS),
        bus.pull(runner_consumer("default", "eval", ack_wait=1.0), slots=1) as puller,
    ):
        message = await anext(puller)
        assert message.num_delivered == 2
        await message.ack(sync=True)
    assert (await bus.js.stream_info(TASKS)).state.messages == 0


def test_18_every_state_and_outcome_that_is_compared_with_exists() -> None:
    assert {state for state, _ in TRANSITIONS} | set(TRANSITIONS.values()) <= set(get_args(State))
    written = "".join(path.read_text() for path in (ROOT / "runners").rglob("*.py"))
    ended_as = set(re.findall(r'(?:RolloutResult|finish)\("(\w+)"', written))
    ended_as.add(FAILED)  # a grader gives it
    assert ended_as == set(get_args(Outcome)), "every outcome is given by somebody, and nobody gives another"
