"""What the learner acknowledges, and from where it replays, against a real broker."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.streams.specs import learner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.consumer import RolloutConsumer
from lightningbus.learner.rollouts.stream_position import StreamMark
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import schema_of
from lightningbus.schemas.spans import SpanBatch
from tests.factories import batches
from tests.learner.conftest import builder_for
from tests.polling import HANG_SECONDS


@asynccontextmanager
async def reading(
    bus: Bus,
    position: int = 1,
    used: dict[str, int] | None = None,
    closed: Sequence[str] = (),
    mark: StreamMark | None = None,
) -> AsyncIterator[RolloutConsumer]:
    """An intake that runs while the block does."""
    intake = RolloutConsumer(bus, LearnerSettings(model_path=Path("model"), group_size=2), position, used, closed, mark)
    running = asyncio.create_task(intake.run())
    try:
        yield intake
    finally:
        await cancel_and_wait(running)


async def until_read(intake: RolloutConsumer, next_sequence: int) -> None:
    """Wait until everything before a stream position has been taken in."""
    async with asyncio.timeout(HANG_SECONDS):
        while intake.next_sequence < next_sequence:
            await asyncio.sleep(0.01)


async def publish(bus: Bus, *rollouts: tuple[str, int]) -> None:
    for task, sample in rollouts:
        for part in batches(task, sample, samples=2):
            await bus.publish(subjects.rollout("train"), part, msg_id=f"{task}:{sample}:{part.sequence}")


async def publish_for_ever(bus: Bus) -> None:
    for number in itertools.count():
        await publish(bus, (f"other{number}", 0))
        await asyncio.sleep(0.05)


async def test_the_position_stays_before_what_is_not_used_and_acknowledgement_follows_it(bus: Bus) -> None:
    async with reading(bus) as intake:
        await publish(bus, ("a", 0), ("b", 0), ("a", 1))  # two messages each: a is whole, b waits for its second
        await until_read(intake, 7)
        assert intake.replay_position() == 1 and intake.consumed_since(1) == {}
        (group,) = intake.groups.pop_ready(1)
        intake.mark_consumed(group.rollouts)
        assert group.task_id == "a"
        assert intake.replay_position() == 3 and intake.consumed_since(3) == {"a.1-1": 6}, "a.0 ends before position 3"
        await intake.acknowledge(intake.replay_position())
        async with asyncio.timeout(HANG_SECONDS):
            while (await bus.js.consumer_info(subjects.TRAIN_ROLLOUTS, "learner-policy")).ack_floor.stream_seq != 2:
                await asyncio.sleep(0.02)


async def test_a_replay_gives_what_was_left_and_nothing_that_was_used(bus: Bus) -> None:
    async with reading(bus) as intake:
        await publish(bus, ("a", 0), ("b", 0), ("a", 1))
        await until_read(intake, 7)
        intake.mark_consumed(intake.groups.pop_ready(1)[0].rollouts)
        position, closed = intake.replay_position(), intake.groups.released_tasks()
        used = intake.consumed_since(position)
    async with reading(bus, position, used, closed) as again:
        await publish(bus, ("b", 1))
        await until_read(again, 9)
        (group,) = again.groups.pop_ready(1)
        assert (group.task_id, len(group.rollouts)) == ("b", 2)
        assert again.groups.pop_ready(1) == [] and list(again.groups.pending_rollouts()) == []


async def test_what_cannot_be_read_and_what_is_of_another_run_is_passed_over(bus: Bus) -> None:
    async with reading(bus) as intake:
        await bus.js.publish(subjects.rollout("train"), b"\xc1", headers={"Lightningbus-Schema": schema_of(SpanBatch)})
        for part in batches("other", 0, run="elsewhere", samples=2):
            await bus.publish(subjects.rollout("train"), part, msg_id=f"other:{part.sequence}")
        await publish(bus, ("a", 0), ("a", 1))
        await until_read(intake, 8)
        assert [group.task_id for group in intake.groups.pop_ready(1)] == ["a"]
        assert intake.replay_position() == 8


async def test_what_another_reader_took_is_read_again(bus: Bus) -> None:
    """Two learners by mistake: batches the older one was given are not lost to the newer one."""
    async with reading(bus) as intake:
        await publish(bus, ("a", 0))
        await until_read(intake, 3)
        async with bus.pull(learner_consumer("policy"), slots=4) as thief:
            await publish(bus, ("b", 0), ("c", 0), ("d", 0), ("e", 0))
            await asyncio.wait_for(anext(thief), HANG_SECONDS)
        await publish(bus, ("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1))
        await until_read(intake, 21)
        assert sorted(group.task_id for group in intake.groups.pop_ready(5)) == ["a", "b", "c", "d", "e"]


async def test_the_first_delivery_after_a_reset_is_missed_though_nothing_comes_later(bus: Bus) -> None:
    """A request from before the reset is still answered: what another reader was given first is read again."""
    await publish(bus, ("a", 0))
    async with bus.pull(learner_consumer("policy"), slots=3) as thief, asyncio.timeout(HANG_SECONDS):
        assert [(await anext(thief)).sequence for _ in range(2)] == [1, 2]
        async with reading(bus) as intake:
            assert (await anext(thief)).sequence == 1, "its third slot was still asked for"
            await until_read(intake, 3)


async def test_what_another_reader_was_given_is_missed_though_nothing_comes_here(bus: Bus) -> None:
    """The request of a learner that is gone takes all messages; no message tells of it."""
    (whole,) = batches("a", 0, parts=1, samples=2)
    await bus.publish(subjects.rollout("train"), whole, msg_id="a")
    async with bus.pull(learner_consumer("policy"), slots=2) as thief, asyncio.timeout(HANG_SECONDS):
        assert (await anext(thief)).sequence == 1
        async with reading(bus) as intake:
            assert (await anext(thief)).sequence == 1, "its second slot was still asked for"
            await until_read(intake, 2)


async def test_the_last_delivery_is_missed_though_nothing_comes_later(bus: Bus) -> None:
    async with (
        reading(bus) as intake,
        bus.pull(learner_consumer("policy"), slots=1) as thief,
        asyncio.timeout(HANG_SECONDS),
    ):
        last = 0
        while not thief.in_flight:  # the broker serves who waits by turns
            (whole,) = batches("a", last, parts=1, samples=2)
            last = await bus.publish(subjects.rollout("train"), whole, msg_id=f"a:{last}")
            while (await bus.backlog(learner_consumer("policy"))).num_delivered < last:
                await asyncio.sleep(0.02)
        assert (await anext(thief)).sequence == last
        await until_read(intake, last + 1)


async def test_a_reader_that_never_goes_is_not_raced_and_not_borne_for_ever(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One of its kind that is told nothing: what it takes is read again, with a pause each time, and then no more."""
    monkeypatch.setattr("lightningbus.learner.rollouts.consumer.CONFLICT_TIMEOUT_SECONDS", 3.0)
    await publish(bus, *((str(task), 0) for task in range(30)))

    async def take() -> None:
        async for message in thief:
            message.free_slot()

    intake = RolloutConsumer(bus, LearnerSettings(model_path=Path("model"), group_size=2))
    running = asyncio.create_task(intake.run())
    await until_read(intake, 61)
    async with (
        bus.pull(learner_consumer("policy"), slots=1) as thief,
        asyncio.timeout(HANG_SECONDS),
    ):  # which always asks last
        taking = asyncio.create_task(take())
        await publish(bus, *((str(task), 1) for task in range(30)))
        with pytest.raises(LearnerError, match="a model has one learner on a bus"):
            await running
        await cancel_and_wait(taking)
    assert sum("reading them again" in record.message for record in caplog.records) <= 4


async def test_of_two_readers_that_stay_the_one_who_came_last_gives_up(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learners of two models by mistake: none is fenced, and each takes the other's batches as they come."""
    changes = {
        "POLL_SECONDS": 0.2,
        "RESET_PAUSE_SECONDS": 0.2,
        "GAP_WINDOW_SECONDS": 8.0,
        "CONFLICT_TIMEOUT_SECONDS": 4.0,
    }
    for name, value in changes.items():
        monkeypatch.setattr(f"lightningbus.learner.rollouts.consumer.{name}", value)
    async with reading(bus) as older, Bus.connect(nats_url) as other, asyncio.timeout(HANG_SECONDS):
        await publish(bus, ("a", 0), ("b", 0))
        await until_read(older, 5)
        await asyncio.sleep(changes["GAP_WINDOW_SECONDS"])
        newer = RolloutConsumer(other, LearnerSettings(model_path=Path("model"), group_size=2))
        publishing = asyncio.create_task(publish_for_ever(bus))
        with pytest.raises(LearnerError, match="a model has one learner on a bus"):
            await newer.run()
        await cancel_and_wait(publishing)
        await publish(bus, ("a", 1), ("b", 1))
        await until_read(older, (await bus.stream_state(subjects.TRAIN_ROLLOUTS)).last_seq + 1)
        assert sorted(group.task_id for group in older.groups.pop_ready(2)) == ["a", "b"]


async def test_what_comes_again_is_not_acknowledged_in_place_of_what_is_newer(bus: Bus) -> None:
    """Batches that no checkpoint covers within `ack_wait` are delivered again, behind newer ones."""
    async with reading(bus) as intake, asyncio.timeout(HANG_SECONDS):
        await publish(bus, ("a", 0))
        await until_read(intake, 3)
        await intake._unacked[0].nak()  # as if its time were up
        while (await bus.backlog(learner_consumer("policy"))).num_delivered != 3:
            await asyncio.sleep(0.02)
        await publish(bus, ("b", 0))
        await until_read(intake, 5)
        await intake.acknowledge(3)
        while not (info := await bus.js.consumer_info(subjects.TRAIN_ROLLOUTS, "learner-policy")).ack_floor.stream_seq:
            await asyncio.sleep(0.02)
        assert info.ack_floor.stream_seq == 2


async def test_nothing_is_missed_when_the_broker_is_killed(bus: Bus, nats: NatsServer) -> None:
    async with reading(bus) as intake:
        await publish(bus, ("a", 0))
        await until_read(intake, 3)
        await nats.kill()
        await nats.start()
        await publish(bus, ("a", 1))
        await until_read(intake, 5)
        assert [len(group.rollouts) for group in intake.groups.pop_ready(1)] == [2]


async def test_a_late_attempt_is_accounted_for_and_never_used(bus: Bus) -> None:
    async with reading(bus) as intake:
        await publish(bus, ("a", 0), ("a", 1))
        for part in batches("a", 0, reward=0.0, attempt=2, samples=2):
            await bus.publish(subjects.rollout("train"), part, msg_id=f"again:{part.sequence}")
        await until_read(intake, 7)
        assert [late_attempt.attempt for late_attempt in intake.groups.late_attempts] == [2]
        assert [rollout.attempt for rollout in intake.groups.pop_ready(1)[0].rollouts] == [1, 1]


async def test_the_same_batches_come_of_the_same_stream_position_to_the_bit(bus: Bus) -> None:
    """What a learner that starts again trains on is what it would have trained on."""
    maker = builder_for(LearnerSettings(model_path=Path("model"), group_size=2))
    digests = []
    await publish(bus, ("a", 0), ("b", 0), ("c", 1), ("b", 1), ("c", 0), ("a", 1))
    for _ in range(2):
        async with reading(bus) as intake:
            await until_read(intake, 13)
            batches_of = [maker.build(intake.groups.pop_ready(1), 0) for _ in range(3)]
            digests.append([batch.compute_sha256() for batch in batches_of])
            assert [batch.dispositions[0].task_id for batch in batches_of] == ["b", "c", "a"], (
                "in the order they became whole"
            )
    assert digests[0] == digests[1] and len(set(digests[0])) == 3


async def test_no_message_ends_the_reading_of_the_others(bus: Bus) -> None:
    """Events that decode and make no sense: each costs its own attempt, at most."""
    (early,) = batches("odd", 0, parts=1, samples=2)
    numbers = [replace(early, sequence=5, end=None), replace(early, sequence=1)]
    endless = [replace(early, rollout_id="x.0", task_id="x", execution_id="x", group_size=2**62)]
    nowhere = [replace(early, rollout_id="y.9", task_id="y", execution_id="y", sample_index=9)]
    async with reading(bus) as intake:
        for number, batch in enumerate([*numbers, *endless, *nowhere]):
            await bus.publish(subjects.TRAIN_ROLLOUT, batch, msg_id=f"odd:{number}")
        await publish(bus, ("a", 0), ("a", 1))
        await until_read(intake, 9)
        assert [group.task_id for group in intake.groups.pop_ready(1)] == ["a"]
        assert intake.groups.ended_rollouts() == {} and intake.replay_position() == 9


async def test_a_rollout_that_cannot_be_read_ends_all_the_same_and_its_group_waits_for_nothing(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> tuple[float, ...]:
        raise ArithmeticError("an odd span")

    async with reading(bus) as intake:
        with monkeypatch.context() as patched:
            patched.setattr("lightningbus.learner.rollouts.assembler.intermediate_rewards", broken)
            await publish(bus, ("bad", 0), ("bad", 1))
            await until_read(intake, 5)
        await publish(bus, ("good", 0), ("good", 1))
        await until_read(intake, 9)
        assert [group.task_id for group in intake.groups.pop_ready(1)] == ["good"]
        (rejected,) = intake.groups.rejected
        assert [rollout.problem for rollout in rejected.rollouts] == [
            "cannot be read: ArithmeticError: an odd span"
        ] * 2
