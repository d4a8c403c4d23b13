"""What one of everything costs: bytes by what is encoded and stored, CPU seconds by what the processes used.

CPU seconds, not rates: they say the same on a machine that others use at the same time.
"""

import asyncio
import json
import os
import resource
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
from clickhouse_connect.driver.client import Client
from nats.aio.msg import Msg

from benchmarks.sizing.model import Fit
from benchmarks.store.database import create_database
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer, nats_server
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.streams.specs import STORE_TRAIN, learner_consumer
from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.codec import encode
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.spans import SpanBatch, VersionSpan
from lightningbus.schemas.tasks import Task
from lightningbus.store.clickhouse.client import query_row
from lightningbus.store.embedded.serving import serve_embedded
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.ingester import Ingester
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata
from lightningbus.store.ingest.writer import Writer
from lightningbus.store.settings import StoreSettings

SHAPES = ((1, 100), (1, 1000), (8, 100), (8, 500), (32, 100))
"""Turns of a rollout, and tokens of each turn: two in five of them sampled."""
EACH = 40
"""Rollouts of each shape, a few hundred messages of each kind."""
WORDS = 20_000


def rollout(run: str, shape: tuple[int, int], number: int) -> list[SpanBatch]:
    """As its runner records it; words and tokens as frequent as in a language (Zipf)."""
    turns, tokens = shape
    chance = np.random.default_rng((turns, tokens, number))
    name, sampled = f"{run}-{turns}-{tokens}-{number}", tokens * 2 // 5
    attempt = AttemptRecorder(Task(id=name, run_id=run, agent="default", input={"n": number}), 1, "runner-0")
    messages: list[dict[str, str]] = []
    kept: list[int] = []
    for turn in range(turns):
        question, replies = (np.minimum(chance.zipf(1.2, n), WORDS).tolist() for n in (tokens - sampled, sampled))
        messages.append({"role": "user", "content": " ".join(f"word{item}" for item in question)})
        kept += question
        text = " ".join(f"word{item}" for item in replies)
        part = SampledChoice(
            model="policy", response_id=f"chatcmpl-{number}-{turn}", prompt_ids=array("I", kept).tobytes(),
            response_ids=array("I", replies).tobytes(),
            logprobs=(-chance.exponential(0.6, sampled)).astype("<f4").tobytes(),
            token_texts=tuple(f" word{item}" for item in replies),
            weight_versions=(VersionSpan(version=7, start=0, end=sampled),),
            finish_reason="stop", sampling={"temperature": 1.0},
            response=json.dumps({"role": "assistant", "content": text}),
        )  # fmt: skip
        at = attempt.started_ns + turn * 1_000_000_000
        request = json.dumps({"model": "policy", "messages": messages})
        attempt.add_call(part, node="node-0", role="", request=request, started_ns=at, ended_ns=at + 900_000_000)
        messages.append({"role": "assistant", "content": text})
        kept += replies
    attempt.finish("ok", 1.0, "", "1.0")
    return list(attempt.outbox)


def fitted(values: Sequence[float]) -> Fit:
    """Least squares of a value for each of `SHAPES`, per rollout; none of the three below nothing."""
    rows = np.array([[1.0, turns, turns * tokens] for turns, tokens in SHAPES])
    weights = 1 / np.array(values)  # by relative error: the smallest shape counts as much as the largest
    kept = [0, 1, 2]
    while True:
        solution, *_ = np.linalg.lstsq(rows[:, kept] * weights[:, None], np.array(values) * weights, rcond=None)
        if (solution >= 0).all() or len(kept) == 1:
            break
        kept.pop(int(np.argmin(solution)))
    whole = np.zeros(3)
    whole[kept] = np.maximum(solution, 0)
    return Fit(*map(float, whole))


def own_seconds() -> float:
    """CPU seconds of this process so far."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


class Meter:
    """CPU seconds of a server between two looks."""

    def __init__(self, server: NatsServer) -> None:
        assert server.process is not None
        self._process = psutil.Process(server.process.pid)
        self._before = 0.0
        self.since()

    def since(self) -> float:
        """Since the last look."""
        times = self._process.cpu_times()
        now = times.user + times.system
        spent, self._before = now - self._before, now
        return spent


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[NatsServer, Bus]]:
    """A server with all streams, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="bench-sizing-", ignore_cleanup_errors=True) as place:
        async with nats_server(Path(place)) as server, Bus.connect(server.url) as bus:
            await bus.provision()
            yield server, bus


async def stored() -> tuple[Fit, Fit, Fit]:
    """Bytes on the bus, bytes in ClickHouse, and CPU seconds of the store, of a rollout."""
    sent, spent, kept = [], [], []
    with tempfile.TemporaryDirectory(prefix="bench-sizing-", ignore_cleanup_errors=True) as place:
        async with broker() as (_, bus), serve_embedded(Path(place)) as (engine, url):
            client = await asyncio.to_thread(create_database, url)
            types = await asyncio.to_thread(load_column_types, client, "lightningbus")
            await _inserted(bus, Writer(bus, engine.insert, "lightningbus", types), _some("warm", SHAPES[0], EACH))
            for shape in SHAPES:
                count = EACH * (1 + 8 // shape[0])
                batches = _some("sizing", shape, count)
                before = await asyncio.to_thread(_on_disk, client)
                took = await _inserted(bus, Writer(bus, engine.insert, "lightningbus", types), batches)
                sent.append(sum(len(encode(batch)) for batch in batches) / count)
                spent.append(took / count)
                kept.append((await asyncio.to_thread(_on_disk, client) - before) / count)
    return fitted(sent), fitted(kept), fitted(spent)


def _some(run: str, shape: tuple[int, int], count: int) -> list[SpanBatch]:
    return [batch for number in range(count) for batch in rollout(run, shape, number)]


async def _inserted(bus: Bus, writer: Writer, batches: Sequence[SpanBatch]) -> float:
    """CPU seconds of this process from a stream that holds them to rows."""
    await publish(bus, batches)
    expected = sum(1 for batch in batches for _ in build_rows(batch, EventMetadata(0, 0, lambda run: 0)))
    stop, used = asyncio.Event(), own_seconds()
    work = asyncio.create_task(Ingester(bus, writer, StoreSettings()).run(stop))
    while writer.rows < expected:
        await asyncio.sleep(0.01)
    took = own_seconds() - used
    stop.set()
    await work
    return took


def _on_disk(client: Client) -> int:
    """Once what was inserted is folded."""
    tables = "SELECT DISTINCT table FROM system.parts WHERE active AND database = 'lightningbus'"
    for (table,) in client.query(tables).result_rows:
        client.command(f"OPTIMIZE TABLE {table} FINAL")
    size = "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = 'lightningbus'"
    return int(query_row(client, size)[0])


async def publish(bus: Bus, batches: Sequence[SpanBatch]) -> None:
    """As runners do, 64 at once."""
    gate = asyncio.Semaphore(64)

    async def insert(batch: SpanBatch) -> None:
        async with gate:
            msg_id = ids.batch_msg_id(batch.execution_id, batch.sequence)
            await bus.publish(subjects.rollout(batch.mode), batch, msg_id=msg_id, timeout=300)

    await asyncio.gather(*map(insert, batches))


async def of_a_byte() -> float:
    """CPU seconds of the broker for a byte of spans, published, kept and given to a store and a learner."""
    by_size = []
    async with broker() as (server, bus):
        meter = Meter(server)
        for kilobytes in (2, 32):
            batches = [item for n in range(400) for item in rollout("bus", (1, 25 * kilobytes), n)]
            size = sum(len(encode(batch)) for batch in batches)
            async with (
                bus.pull(STORE_TRAIN, slots=8192) as store,
                bus.pull(learner_consumer("policy"), slots=8192) as learner,
            ):
                meter.since()
                await publish(bus, batches)
                for puller in (store, learner):
                    for number in range(len(batches)):
                        item = await anext(puller)
                        if puller is store or number % 50 == 49:
                            await item.ack()
                await settle()
                by_size.append((len(batches), size, meter.since()))
    (few, small, less), (many, large, more) = by_size
    return max(more / many - less / few, 0.0) / (large / many - small / few)


async def settle() -> None:
    """The broker's time is written down every hundredth of a second."""
    await asyncio.sleep(0.2)


def heartbeat(number: int) -> Heartbeat:
    """As a runner says it."""
    detail = {"agent": "default", "busy": "3/4", "done": 1234, "rollouts_per_s": 0.5}
    return Heartbeat(role="runner", id=f"r{number}", state="running", pid=os.getpid(), sent_at_ns=1, status=detail)


async def read(members: int) -> float:
    """CPU seconds of one heartbeat for who listens to so many."""
    fleet = Fleet(None, "*")  # type: ignore[arg-type]
    messages = [
        Msg(None, subjects.heartbeat("runner", f"r{n}"), "", encode(heartbeat(n)))  # type: ignore[arg-type]
        for n in range(members)
    ]
    for message in messages:
        await fleet._on_heartbeat(message)
    some = messages[: max(20_000 // members, 1) * 200]
    started = time.process_time()
    for message in some:
        await fleet._on_heartbeat(message)
    return (time.process_time() - started) / len(some)
