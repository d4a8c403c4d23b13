"""What the learner acknowledges, and from where it replays, against a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus import LEARNER_SPANS, Bus
from learner.intake import Intake
from learner.settings import LearnerSettings
from schemas import subjects
from tests.making import batches


@asynccontextmanager
async def reading(bus: Bus, used: list[str] | None = None) -> AsyncIterator[Intake]:
    """An intake that runs while the block does."""
    intake = Intake(bus, LearnerSettings(model_path=Path("model"), samples=2), used or [], [])
    running = asyncio.create_task(intake.run())
    try:
        yield intake
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until_read(intake: Intake, next_sequence: int) -> None:
    """Wait until everything before a stream position has been taken in."""
    async with asyncio.timeout(30):
        while intake.next_sequence < next_sequence:
            await asyncio.sleep(0.01)


async def publish(bus: Bus, *rollouts: tuple[str, int]) -> None:
    for task, sample in rollouts:
        for part in batches(task, sample, samples=2):
            await bus.publish(subjects.spans("train"), part, msg_id=f"{task}:{sample}:{part.sequence}")


async def test_the_position_stays_before_what_is_not_used_and_acknowledgement_follows_it(bus: Bus) -> None:
    async with reading(bus) as intake:
        await publish(bus, ("a", 0), ("b", 0), ("a", 1))  # two messages each: a is whole, b waits for its second
        await until_read(intake, 7)
        assert intake.position() == 1 and intake.used() == []
        (group,) = intake.groups.take(1)
        assert group.task == "a"
        assert intake.position() == 3 and intake.used() == ["a.0", "a.1"]
        await intake.acknowledge(intake.position())
        async with asyncio.timeout(10):
            while (await bus.js.consumer_info(subjects.SPANS, subjects.LEARNER)).ack_floor.stream_seq != 2:
                await asyncio.sleep(0.02)


async def test_a_replay_gives_what_was_left_and_nothing_that_was_used(bus: Bus) -> None:
    async with reading(bus) as intake:
        await publish(bus, ("a", 0), ("b", 0), ("a", 1))
        await until_read(intake, 7)
        intake.groups.take(1)
        used, position = intake.used(), intake.position()
    await bus.reset(LEARNER_SPANS, position)
    async with reading(bus, used) as again:
        await publish(bus, ("b", 1))
        await until_read(again, 9)
        (group,) = again.groups.take(1)
        assert (group.task, len(group.rollouts)) == ("b", 2)
        assert again.groups.take(1) == [] and list(again.groups.held()) == []


async def test_what_cannot_be_read_and_what_is_of_another_run_is_passed_over(bus: Bus) -> None:
    async with reading(bus) as intake:
        await bus.js.publish(subjects.spans("train"), b"\xc1", headers={"Lb-Schema": "SpanBatch/1"})
        for part in batches("other", 0, run="elsewhere", samples=2):
            await bus.publish(subjects.spans("train"), part, msg_id=f"other:{part.sequence}")
        await publish(bus, ("a", 0), ("a", 1))
        await until_read(intake, 8)
        assert [group.task for group in intake.groups.take(1)] == ["a"]
        assert intake.position() == 8
