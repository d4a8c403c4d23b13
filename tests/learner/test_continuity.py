"""A bus that lost messages: made anew, emptied, rolled back to an older copy; against real brokers."""

import asyncio
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.streams.specs import StreamState
from lightningbus.learner.rollouts.stream_position import StreamMark, advance_mark, find_gap, resume_at
from lightningbus.schemas import subjects
from tests.learner.test_consumer import publish, reading, until_read
from tests.polling import HANG_SECONDS


def stream(created: str = "monday", first: int = 1, last: int = 0) -> StreamState:
    return StreamState("S", created, first, last, max(0, last - first + 1), 0, -1, -1)


def mark(offset: int = 0, last: int = 0, created: str = "monday") -> StreamMark:
    return StreamMark(created=created, offset=offset, last=last)


@pytest.mark.parametrize(
    ("known", "position", "state", "sequence", "offset", "gap"),
    [
        (mark(created=""), 1, stream(first=501, last=900), 501, 0, ""),
        (mark(created=""), 9, stream(last=3), 1, 8, "ends at message 3 again: it has lost the 5 messages after that"),
        (mark(last=25928), 25900, stream(first=25609, last=25608), 25609, 25928, "it has lost the 320 messages after"),
        (mark(last=20), 9, stream(first=9, last=20), 9, 0, ""),
        (mark(last=20), 21, stream(first=21, last=20), 21, 0, ""),
        (mark(last=20), 9, stream(first=5, last=30), 9, 0, ""),
        (
            mark(last=20),
            9,
            stream("tuesday", last=0),
            1,
            20,
            "it had 20 messages, and it is empty",
        ),
        (mark(last=20), 9, stream("tuesday", last=40), 1, 20, "made anew at tuesday: it had 20 messages"),
        (mark(last=20), 9, stream(first=4, last=19), 4, 20, "message 19 again: it has lost the message after that"),
        (mark(last=7), 21, stream(first=4, last=19), 4, 20, "ends at message 19 again"),
        (mark(last=20), 9, stream(first=12, last=30), 12, 0, "begins at message 12 now: messages from 9 on are gone"),
        (mark(offset=100, last=20), 109, stream(first=9, last=20), 9, 100, ""),
        (mark(offset=100, last=20), 90, stream(first=3, last=20), 3, 100, "messages from 1 on are gone"),
        (mark(offset=100, last=20), 109, stream("tuesday", last=2), 1, 120, "made anew"),
    ],
)
def test_where_a_learner_goes_on_is_decided_by_what_it_knows_and_what_is_there(
    known: StreamMark, position: int, state: StreamState, sequence: int, offset: int, gap: str
) -> None:
    text = resume_at(known, position, state)
    assert (text.sequence, text.mark.offset, text.mark.created) == (sequence, offset, state.created_at)
    assert (gap in text.gap) and bool(gap) == bool(text.gap)
    again = resume_at(text.mark, max(position, text.mark.offset + text.sequence), state)
    assert (again.sequence, again.gap, again.mark) == (sequence, "", text.mark), "said once"


def queue(last: int, created: str = "monday") -> StreamState:
    return StreamState("TASKS", created, last + 1, last, 0, 0, -1, -1)


def check(known: StreamMark, tasks: StreamState, last_task: int = 0) -> tuple[str, str, StreamMark]:
    """Reason and nonce of a gap in a stream of rollouts that is as it was, and the mark after it."""
    continuation = resume_at(known, 9, stream(last=20))
    gap = find_gap(continuation, known, tasks, 20)
    reason, nonce = (gap.reason, gap.nonce) if gap is not None else ("", "")
    return reason, nonce, advance_mark(continuation.mark, tasks, last_task, gap)


def test_tasks_are_lost_if_their_stream_ends_earlier_than_it_did() -> None:
    known = StreamMark(created="monday", last=20, tasks="monday", last_task=50)
    assert check(known, queue(50)) == ("", "", known)
    assert check(known, queue(60))[2].last_task == 60, "others publish there too"
    assert check(known, queue(50), last_task=61)[2].last_task == 61, "published during the check"
    reason, nonce, mark = check(known, queue(40))
    assert reason == "stream TASKS ends at message 40 again: it has lost messages up to 50"
    assert (mark.last_task, mark.num_losses) == (40, 1)
    assert check(mark, queue(45))[0] == "", "noticed once"
    assert "made anew at tuesday" in check(known, queue(70, "tuesday"))[0]
    assert check(StreamMark(created="monday", last=20, last_task=50), queue(0))[0] == "", "the queue was not known"

    later, earlier = replace(known, last_task=70), replace(known, last_task=43)
    assert {check(each, queue(42))[1] for each in (later, earlier)} == {nonce}, "one loss, noticed elsewhere and later"
    assert check(replace(mark, last_task=50), queue(40))[1] != nonce, "the same copy is restored once more"


async def test_a_learner_goes_on_when_the_bus_comes_back_empty(bus: Bus, nats: NatsServer) -> None:
    async with reading(bus) as intake:
        await publish(bus, ("a", 0), ("b", 0), ("b", 1), ("c", 0))
        await until_read(intake, 9)
        intake.mark_consumed(intake.groups.pop_ready(1)[0].rollouts)
        await nats.kill()
        shutil.rmtree(nats.directory / "jetstream")
        await nats.start()
        async with asyncio.timeout(HANG_SECONDS):
            await bus.reconnected.wait()
            await bus.provision()
            gap = await intake.gaps.get()
        assert "TRAIN_ROLLOUTS was made anew" in gap.reason and "it had 8 messages" in gap.reason
        assert "TASKS was made anew" in gap.reason
        assert intake.groups.ended_rollouts() == {"a": {0}, "c": {0}}, "what was read is not lost"
        await publish(bus, ("a", 1))
        await until_read(intake, 11)
        assert [group.task_id for group in intake.groups.pop_ready(1)] == ["a"]
        assert intake.replay_position() == 7, "c.0 was read of the stream that is gone"
        state = intake.replay_position(), intake.consumed_since(7), intake.groups.released_tasks(), intake.stream_mark
    async with reading(bus, *state) as again, asyncio.timeout(HANG_SECONDS):
        assert "messages from 1 on are gone" in (await again.gaps.get()).reason
        await until_read(again, 11)


async def test_a_learner_goes_on_when_the_bus_is_rolled_back_to_an_older_copy(
    bus: Bus, nats: NatsServer, tmp_path: Path
) -> None:
    async with reading(bus) as intake, asyncio.timeout(HANG_SECONDS):
        await publish(bus, ("a", 0), ("b", 0))
        await until_read(intake, 5)
        await nats.stop()
        shutil.copytree(nats.directory / "jetstream", tmp_path / "copy")
        await nats.start()
        await publish(bus, ("b", 1), ("c", 0))
        await until_read(intake, 9)
        assert [group.task_id for group in intake.groups.ready] == ["b"]
        await nats.kill()
        shutil.rmtree(nats.directory / "jetstream")
        shutil.move(tmp_path / "copy", nats.directory / "jetstream")
        await nats.start()
        gap = await intake.gaps.get()
        assert "ends at message 4 again" in gap.reason and "TASKS" not in gap.reason
        await publish(bus, ("a", 1))
        await until_read(intake, 8 + 6 + 1)
        assert sorted(group.task_id for group in intake.groups.pop_ready(2)) == ["a", "b"]
        assert intake.groups.late_attempts == [] and intake.groups.ended_rollouts() == {"c": {0}}


async def test_a_checkpoint_ahead_of_the_streams_end_is_gone_on_from(bus: Bus) -> None:
    """The learner was stopped while the bus lost what it had; its position lies beyond all that is there."""
    await publish(bus, ("a", 0))
    created = (await bus.stream_state(subjects.TRAIN_ROLLOUTS)).created_at
    async with (
        reading(bus, 900, {}, [], StreamMark(created=created, last=950)) as intake,
        asyncio.timeout(HANG_SECONDS),
    ):
        gap = await intake.gaps.get()
        assert "ends at message 2 again" in gap.reason
        await publish(bus, ("a", 1))
        await until_read(intake, 950 + 5)
        assert [group.task_id for group in intake.groups.pop_ready(1)] == ["a"]


async def test_a_stream_made_anew_behind_a_connection_that_held_is_noticed(bus: Bus) -> None:
    async with reading(bus) as intake, asyncio.timeout(HANG_SECONDS):
        await publish(bus, ("a", 0), ("b", 0))
        await until_read(intake, 5)
        await bus.js.delete_stream(subjects.TRAIN_ROLLOUTS)
        await bus.provision()
        assert "made anew" in (await intake.gaps.get()).reason
        await publish(bus, ("a", 1))
        await until_read(intake, 7)
        assert [group.task_id for group in intake.groups.pop_ready(1)] == ["a"]


async def test_the_same_loss_has_the_same_name_whenever_it_is_noticed(bus: Bus) -> None:
    state = 900, {}, [], StreamMark(created="long ago", last=950, tasks="then")
    nonces = set()
    for _ in range(2):
        async with reading(bus, *state) as intake, asyncio.timeout(HANG_SECONDS):
            nonces.add((await intake.gaps.get()).nonce)
    assert len(nonces) == 1
