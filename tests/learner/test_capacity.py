"""Whether rollouts fit the bus until a checkpoint covers them, and what is done as they fill it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.sizes import MIB, StreamSizes
from lightningbus.bus.streams.specs import STORE_TRAIN, learner_consumer
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.learner import run
from lightningbus.learner.rollouts.capacity import Capacity, filled_share, find_shortage
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from tests.factories import batches
from tests.learner.conftest import settings_for
from tests.learner.test_consumer import publish, reading, until_read
from tests.polling import HANG_SECONDS
from tests.stream_limits import limit

SHIPPED = Capacity(2048 * MIB, 2_000_000, 200_000)


def settings(**changes: Any) -> LearnerSettings:
    return LearnerSettings(model_path=Path("model"), **changes)


@pytest.mark.parametrize(
    ("changes", "capacity", "step", "interval"),
    [
        ({}, SHIPPED, "", ""),
        ({"checkpoint_interval": 100}, SHIPPED, "", "the steps between two checkpoints need"),
        (
            {"groups_per_step": 512, "group_size": 16, "seq_len": 16384, "max_staleness": 0},
            SHIPPED,
            "need 2,336 MiB (1 x groups_per_step 512 x group_size 16 = 8,192 rollouts of 299,008 bytes), but half of "
            "stream TRAIN_ROLLOUTS is 1,024 MiB: set train_rollouts_mib to 4672 ",
            "",
        ),
        (
            {"groups_per_step": 512, "group_size": 16, "seq_len": 16384, "max_staleness": 0},
            Capacity(4672 * MIB, 2_000_000, 200_000),
            "",
            "",
        ),
        ({"rollout_bytes": 1000, "groups_per_step": 10_000}, SHIPPED, "set max_ack_pending to 480000", ""),
        ({"rollout_bytes": 10_000_000, "groups_per_step": 4}, Capacity(-1, -1, -1), "", ""),
    ],
)
def test_a_step_that_the_bus_cannot_hold_is_refused_with_the_numbers(
    changes: dict[str, Any], capacity: Capacity, step: str, interval: str
) -> None:
    short = find_shortage(settings(**changes), capacity)
    assert step in short.step and bool(step) == bool(short.step)
    assert interval in short.interval and bool(interval) == bool(short.interval)


def test_what_only_others_have_not_read_does_not_fill_the_learners_share() -> None:
    capacity = Capacity(1000, 100, 50)
    assert filled_share(0, 0, 80, 900, capacity) == 0
    assert filled_share(10, 10, 80, 800, capacity) == pytest.approx(0.2)
    assert filled_share(10, 60, 80, 800, capacity) == pytest.approx(0.7)
    assert filled_share(40, 0, 80, 80, capacity) == pytest.approx(0.8)
    assert filled_share(5, 0, 0, 0, Capacity(-1, -1, -1)) == 0


async def test_sizes_are_settings_and_provisioning_again_leaves_them(bus: Bus) -> None:
    await bus.provision(sizes=StreamSizes(train_rollouts_mib=4096, max_ack_pending=300_000))
    await bus.provision()
    assert (await bus.stream_state(subjects.TRAIN_ROLLOUTS)).max_bytes == 4096 * MIB
    assert (await bus.stream_state(subjects.TASKS)).max_bytes == 512 * MIB
    info = await bus.js.consumer_info(learner_consumer("policy").stream, learner_consumer("policy").durable)
    assert info.config.max_ack_pending == 300_000


async def test_a_learner_whose_step_does_not_fit_refuses_to_start(bus: Bus, model_path: Path, tmp_path: Path) -> None:
    await bus.provision(sizes=StreamSizes(train_rollouts_mib=1))
    wanted = settings_for(model_path, checkpoint_dir=tmp_path / "checkpoints", rollout_bytes=100_000)
    with pytest.raises(LearnerError, match="lightningbus provision --size train_rollouts_mib="):
        await run(bus, wanted, asyncio.Event())


async def test_a_checkpoint_is_forced_as_the_stream_fills(bus: Bus, model_path: Path, tmp_path: Path) -> None:
    """Steps between two checkpoints hold more than the stream: the learner would wait for ever for the next one."""
    await bus.js.delete_consumer(STORE_TRAIN.stream, STORE_TRAIN.durable)  # no store is there to acknowledge
    await limit(bus, subjects.TRAIN_ROLLOUTS, 24)
    wanted = settings_for(
        model_path, checkpoint_dir=tmp_path / "checkpoints", group_size=2, groups_per_step=1, max_steps=12,
        max_staleness=99,
        checkpoint_interval=100, staleness={"admission": "unbounded"}, rollout_bytes=1000,
    )  # fmt: skip
    async with asyncio.timeout(HANG_SECONDS):
        running = asyncio.create_task(run(bus, wanted, asyncio.Event()))
        await publish(bus, *((f"t{task}", sample) for task in range(12) for sample in range(2)))
        await running


async def test_groups_that_come_to_nothing_do_not_fill_the_stream(bus: Bus, model_path: Path, tmp_path: Path) -> None:
    """Agents that fail for hours: no step is made, and what is known to be of no use is acknowledged."""
    await bus.js.delete_consumer(STORE_TRAIN.stream, STORE_TRAIN.durable)
    await limit(bus, subjects.TRAIN_ROLLOUTS, 24)
    wanted = settings_for(
        model_path, checkpoint_dir=tmp_path / "checkpoints", group_size=2, groups_per_step=1, max_steps=1,
        rollout_bytes=1000,
        max_staleness=99, staleness={"admission": "unbounded"},
    )  # fmt: skip
    async with asyncio.timeout(HANG_SECONDS):
        running = asyncio.create_task(run(bus, wanted, asyncio.Event()))
        for task in range(20):
            for sample in range(2):
                for part in batches(f"bad{task}", sample, samples=2, outcome="agent_error"):
                    await bus.publish(subjects.TRAIN_ROLLOUT, part, msg_id=f"{part.execution_id}:{part.sequence}")
        await publish(bus, ("good", 0), ("good", 1))
        await running


async def test_the_intake_says_how_full_its_share_is(bus: Bus) -> None:
    await bus.js.delete_consumer(STORE_TRAIN.stream, STORE_TRAIN.durable)
    await limit(bus, subjects.TRAIN_ROLLOUTS, 8)
    async with reading(bus) as intake, asyncio.timeout(HANG_SECONDS):
        await publish(bus, ("a", 0))
        await until_read(intake, 3)
        await intake.fill.refresh()
        assert intake.fill.share == pytest.approx(0.25) and not intake.fill.is_filling
        await publish(bus, ("a", 1))
        await until_read(intake, 5)
        await intake.fill.refresh()
        assert intake.fill.share == pytest.approx(0.5) and intake.fill.is_filling
        intake.mark_consumed(intake.groups.pop_ready(1)[0].rollouts)
        await intake.acknowledge(intake.replay_position())
        while intake.fill.share:
            await intake.fill.refresh()
