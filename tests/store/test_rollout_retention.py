"""A learner that is behind does not hold up the others, against a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.sizes import StreamSizes
from lightningbus.bus.streams.specs import learner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.schemas import subjects
from lightningbus.store import rollout_retention
from lightningbus.store.rollout_retention import RolloutRetention, find_laggards
from tests.factories import batches
from tests.polling import HANG_SECONDS

CONSUMERS = [learner_consumer(model) for model in ("writer", "checker")]


@given(st.integers(0, 1000), st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000)))
def test_somebody_who_keeps_up_is_never_passed_by(num_messages: int, waiting: dict[str, int]) -> None:
    laggards = find_laggards(num_messages, waiting)
    assert all(waiting[model] > num_messages / 2 for model in laggards)
    assert not laggards or len(laggards) < len(waiting)


@asynccontextmanager
async def retaining(bus: Bus) -> AsyncIterator[None]:
    task = asyncio.create_task(RolloutRetention(bus).run())
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def test_a_dead_learner_gives_way_and_one_that_reads_loses_nothing(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream takes more than its bound, because the writer reads; the checker finds the newest messages."""
    monkeypatch.setattr(rollout_retention, "CHECK_SECONDS", 0.05)
    await bus.provision(sizes=StreamSizes(train_rollouts_mib=1), policies=["writer", "checker"])
    for consumer in ("learner-policy", subjects.STORE):  # nobody reads them here
        await bus.js.delete_consumer(subjects.TRAIN_ROLLOUTS, consumer)
    writer, checker = CONSUMERS
    num_published = num_read = 0
    async with retaining(bus), bus.pull(writer, slots=64) as puller, asyncio.timeout(HANG_SECONDS):
        for number in range(60):
            for small in batches(f"t{number}", 0):
                batch = replace(small, runner="x" * 40_000)
                await bus.publish(
                    subjects.TRAIN_ROLLOUT, batch, msg_id=f"{number}:{batch.sequence}", timeout=HANG_SECONDS
                )
                num_published += 1
                await (await anext(puller)).ack(sync=True)
                num_read += 1
    assert num_read == num_published
    stream = await bus.stream_state(subjects.TRAIN_ROLLOUTS)
    async with bus.pull(checker, slots=1) as puller, asyncio.timeout(HANG_SECONDS):
        first = await anext(puller)
    assert first.sequence == stream.first_seq > 1, "the oldest have passed it by, and the rest is there"
