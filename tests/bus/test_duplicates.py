"""A duplicate on a first try is another writer's message; a retry of one's own is stored once."""

import asyncio

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.errors import DuplicateMessageError
from lightningbus.bus.jetstream import publisher
from lightningbus.schemas import subjects
from lightningbus.schemas.tasks import Task
from tests.pausing import paused
from tests.polling import HANG_SECONDS

SUBJECT = subjects.task("train", "calc")


def task() -> Task:
    return Task(id="t1", run_id="test", agent="calc", input={})


async def test_a_duplicate_on_the_first_try_is_an_error_for_a_unique_message(bus: Bus) -> None:
    """Another role that took the id first cannot suppress a message in silence."""
    first = await bus.publish(SUBJECT, task(), msg_id="taken")
    assert await bus.publish(SUBJECT, task(), msg_id="taken") == first
    with pytest.raises(DuplicateMessageError, match=r"lb\.task\.train\.calc.*'taken'"):
        await bus.publish(SUBJECT, task(), msg_id="taken", unique=True)


async def test_a_unique_message_whose_acknowledgement_was_late_is_stored_once_without_an_error(
    nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry has the id of the first try, so the server reports a duplicate that is our own."""
    monkeypatch.setattr(publisher, "ATTEMPT_SECONDS", 0.2)
    attempts: list[int] = []
    second = asyncio.Event()
    attempt = bus._publisher._attempt

    async def counted(*arguments: object) -> object:
        attempts.append(1)
        if len(attempts) == 2:
            second.set()
        return await attempt(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bus._publisher, "_attempt", counted)
    with paused(nats.process.pid):
        sending = asyncio.create_task(bus.publish(SUBJECT, task(), msg_id="mine", unique=True))
        await asyncio.wait_for(second.wait(), HANG_SECONDS)
    assert await asyncio.wait_for(sending, HANG_SECONDS) == 1
    assert (await bus.js.stream_info(subjects.TASKS)).state.messages == 1
