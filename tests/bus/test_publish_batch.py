"""Messages of a batch: each is stored once, or has its error."""

import asyncio

import pytest
from nats.errors import OutboundBufferLimitError
from nats.js.api import DiscardPolicy, StreamConfig

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.errors import BusError, DuplicateMessageError, FencedError, PublishTimeoutError, StreamFullError
from lightningbus.bus.jetstream.publish_batch import OutgoingMessage
from lightningbus.bus.jetstream.publisher import MAX_PENDING_ACKS
from lightningbus.bus.security.signing import EXPECTED_LAST_HEADER
from lightningbus.bus.streams.provisioning import ensure_stream
from lightningbus.schemas.subjects import MSG_ID_HEADER
from tests.polling import HANG_SECONDS


def message(number: int, subject: str = "small.a", payload: bytes = b"x", **headers: str) -> OutgoingMessage:
    return OutgoingMessage(subject, payload, {MSG_ID_HEADER: f"m{number}", **headers})


async def make_stream(bus: Bus, max_msgs: int = -1) -> None:
    config = StreamConfig(name="SMALL", subjects=["small.>"], max_msgs=max_msgs, discard=DiscardPolicy.NEW)
    await ensure_stream(bus.js, config)


def num_free(bus: Bus) -> int:
    return bus._publisher.slots._value


async def test_more_messages_than_the_pipeline_holds_are_stored_in_order(bus: Bus) -> None:
    await make_stream(bus)
    count = 2 * MAX_PENDING_ACKS + 7
    assert await bus.publish_batch([message(number) for number in range(count)]) == list(range(1, count + 1))
    assert await bus.publish_batch([]) == []
    assert num_free(bus) == MAX_PENDING_ACKS and not bus._publisher._pending_acks


async def test_an_error_is_that_messages_own(bus: Bus) -> None:
    await make_stream(bus)
    await bus.publish_batch([message(0)])
    results = await bus.publish_batch(
        [
            message(1),
            message(0),
            message(2, **{EXPECTED_LAST_HEADER: "99"}),
            message(3, payload=bytes(bus.nc.max_payload + 1)),
            message(4, subject="nobody.listens"),
            message(5),
        ],
        timeout=1,
        unique=True,
    )
    kinds = [int, DuplicateMessageError, FencedError, BusError, PublishTimeoutError, int]
    assert [type(result) for result in results] == kinds
    assert "over the server's limit" in str(results[3])
    assert num_free(bus) == MAX_PENDING_ACKS and not bus._publisher._pending_acks


async def test_a_full_stream_is_waited_for_and_then_an_error(bus: Bus) -> None:
    await make_stream(bus, max_msgs=1)
    first, second = await bus.publish_batch([message(0), message(1)], timeout=0.3)
    assert first == 1 and isinstance(second, StreamFullError)
    waiting = asyncio.create_task(bus.publish_batch([message(1)], timeout=HANG_SECONDS))
    while not bus.blocked_subjects:
        await asyncio.sleep(0.01)
    await bus.js.purge_stream("SMALL")
    assert await waiting == [2] and not bus.blocked_subjects


async def test_what_the_bus_has_not_acknowledged_is_sent_again_and_stored_once(bus: Bus, nats: NatsServer) -> None:
    await make_stream(bus)
    await bus.publish_batch([message(0)])
    work = asyncio.create_task(bus.publish_batch([message(number) for number in range(1, 2000)], timeout=HANG_SECONDS))
    await asyncio.sleep(0)
    await nats.kill()
    await nats.start()
    results = await work
    assert all(isinstance(result, int) for result in results)
    assert (await bus.js.stream_info("SMALL")).state.messages == 2000


async def test_a_connection_that_takes_nothing_is_tried_again(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_stream(bus)
    publish, failures = bus.nc.publish, [OutboundBufferLimitError(), OutboundBufferLimitError()]

    async def fail_first(*arguments: object, **fields: object) -> None:
        if failures:
            raise failures.pop()
        await publish(*arguments, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(bus.nc, "publish", fail_first)
    results = await bus.publish_batch([message(number) for number in range(3)])
    assert sorted(result for result in results if isinstance(result, int)) == [1, 2, 3]


async def test_a_batch_that_is_cancelled_holds_no_place(bus: Bus) -> None:
    await make_stream(bus, max_msgs=1)
    work = asyncio.create_task(bus.publish_batch([message(number) for number in range(600)], timeout=HANG_SECONDS))
    while not bus.blocked_subjects:
        await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.wait({work})
    assert work.cancelled()
    assert num_free(bus) == MAX_PENDING_ACKS and not bus._publisher._pending_acks and not bus.blocked_subjects
