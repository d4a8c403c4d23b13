"""``python -m benchmarks.store.ingest``: spans per second from stream to rows, against ready-made columns alone."""

import asyncio
import os
import resource
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import uvloop
from clickhouse_connect.driver.client import Client

from benchmarks.results import Result, machine, table, write
from benchmarks.store.database import create_database
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import encode, schema_of
from lightningbus.schemas.spans import AttemptResult, ModelCall, Span, SpanBatch, VersionSpan
from lightningbus.store.clickhouse.client import query_row
from lightningbus.store.embedded.serving import serve_embedded
from lightningbus.store.ingest import arrow
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.ingester import Ingester
from lightningbus.store.ingest.inserter import INSERT_SETTINGS, Insert
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata, Row
from lightningbus.store.ingest.writer import Writer
from lightningbus.store.settings import StoreSettings

PER_ATTEMPT = 10
START_NS = 1_790_000_000_000_000_000
SIZES = {"spans of 1 kB": (300_000, 1_000), "spans of 5 kB": (40_000, 5_000), "model calls of 1k tokens": (10_000, 0)}
"""How many, and the bytes of their attributes; 0: model calls."""


def batches(run: str, count: int, size: int) -> Iterator[SpanBatch]:
    """Attempts of ten spans, each in a batch of its own."""
    for number in range(count // PER_ATTEMPT):
        rollout = f"{run}-{number}.0"
        spans = tuple(_span(number, place, size) for place in range(PER_ATTEMPT))
        end = AttemptResult(outcome="ok", reward=1.0, num_spans=PER_ATTEMPT, started_ns=START_NS, ended_ns=START_NS + 1)
        yield SpanBatch(
            run_id=run,
            task_id=f"{run}-{number}",
            rollout_id=rollout,
            sample_index=0,
            group_size=1,
            attempt=1,
            execution_id=f"e{number}",
            agent="default",
            mode="eval",
            runner="r",
            sequence=0,
            spans=spans,
            end=end,
        )


def _span(number: int, place: int, size: int) -> Span:
    text = os.urandom(size // 2).hex()
    fields = {f"attribute.{n}": text[n * size // 10 : (n + 1) * size // 10] for n in range(10)} if size else {}
    id = f"{number * PER_ATTEMPT + place:016x}"
    start_ns = START_NS + number * 1_000_000
    call = None if size else _call(place)
    return Span(
        trace_id=id * 2,
        span_id=id,
        name="work",
        scope="bench",
        attributes=fields,
        call=call,
        start_ns=start_ns,
        end_ns=start_ns + 1000,
    )


def _call(place: int) -> ModelCall:
    """1,000 tokens: 800 of them new in the prompt, 200 sampled."""
    ids = array("I", os.urandom(4 * 1000))
    return ModelCall(
        index=place,
        model="policy",
        node="n",
        prompt_ids=array("I", [item % 150_000 for item in ids[:800]]).tobytes(),
        response_ids=array("I", [item % 150_000 for item in ids[800:]]).tobytes(),
        logprobs=array("f", [-1.0 / (1 + item % 97) for item in ids[800:]]).tobytes(),
        weight_versions=(VersionSpan(version=1, start=0, end=200),),
        finish_reason="stop",
        sampling_params={"temperature": 1.0},
        request='{"model": "policy", "messages": [{"role": "user", "content": "' + os.urandom(400).hex() + '"}]}',
        response='{"role": "assistant", "content": "' + os.urandom(200).hex() + '"}',
    )


async def ready_made(
    client: Client, span_batches: list[SpanBatch], settings: StoreSettings, insert: Insert
) -> tuple[float, float]:
    """Spans per second of inserting columns that are already there, as the ingester does, and CPU seconds per million.

    It is the ceiling: ClickHouse inserts on one core, and nothing else runs.
    """
    types = await asyncio.to_thread(load_column_types, client, settings.database)
    lots: list[tuple[str, object]] = []
    tables: dict[str, list[Row]] = {}
    size = 0
    for sequence, batch in enumerate(span_batches):
        for name, row in build_rows(batch, EventMetadata(sequence, START_NS, lambda run: 0)):
            tables.setdefault(name, []).append(row)
        size += len(encode(batch))
        if size > settings.batch_bytes or batch is span_batches[-1]:
            lots += [(name, arrow.rows_to_arrow(rows, types[name])) for name, rows in tables.items()]
            tables, size = {}, 0
    before, started = _cpu(), time.monotonic()
    for number, (name, columns) in enumerate(lots):
        token = f"{span_batches[0].run_id}:{number}"
        insert_settings = {"insert_deduplication_token": token, **INSERT_SETTINGS}
        await asyncio.to_thread(insert, settings.database, name, columns, insert_settings)
    spans = len(span_batches) * PER_ATTEMPT
    return spans / (time.monotonic() - started), (_cpu() - before) / spans * 1e6


async def from_the_stream(
    bus: Bus, client: Client, span_batches: list[SpanBatch], settings: StoreSettings, insert: Insert
) -> tuple[float, float]:
    """Spans per second from a stream that holds them all to rows, and CPU seconds per million."""
    headers = {subjects.SCHEMA_HEADER: schema_of(SpanBatch)}
    await asyncio.gather(
        *(bus.publish_bytes(subjects.rollout("eval"), encode(batch), headers, timeout=300) for batch in span_batches)
    )
    types = await asyncio.to_thread(load_column_types, client, settings.database)
    writer, stop = Writer(bus, insert, settings.database, types), asyncio.Event()
    ingester = Ingester(bus, writer, settings)
    expected = sum(1 for batch in span_batches for _ in build_rows(batch, EventMetadata(0, START_NS, lambda run: 0)))
    before, started = _cpu(), time.monotonic()
    work = asyncio.create_task(ingester.run(stop))
    while writer.rows < expected:
        await asyncio.sleep(0.005)
    seconds, spent = time.monotonic() - started, _cpu() - before
    sql = "SELECT count() FROM raw_attempts WHERE run_id = {run_id:String}"
    assert await asyncio.to_thread(query_row, client, sql, {"run_id": span_batches[0].run_id}) == (len(span_batches),)
    stop.set()
    await work
    spans = len(span_batches) * PER_ATTEMPT
    return spans / seconds, spent / spans * 1e6


def _cpu() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


async def measure(place: Path) -> list[Result]:
    """All sizes, ceiling and ingester in turn, twice; the better of each counts."""
    results = []
    async with (
        nats_server(place / "nats") as server,
        Bus.connect(server.url) as bus,
        serve_embedded(place / "store") as (engine, url),
    ):
        await bus.provision()
        client, settings = await asyncio.to_thread(create_database, url), StoreSettings()
        # Merges start at unpredictable times, so they are stopped for both.
        await asyncio.to_thread(client.command, "SYSTEM STOP MERGES")
        for name, (count, size) in SIZES.items():
            rates = []
            for turn in range(2):
                span_batches = list(batches(f"alone-{turn}-{size}", count, size))
                alone = await ready_made(client, span_batches, settings, engine.insert)
                span_batches = list(batches(f"stream-{turn}-{size}", count, size))
                rates.append((*alone, *await from_the_stream(bus, client, span_batches, settings, engine.insert)))
            alone_rates, alone_cpu, stream_rates, stream_cpu = zip(*rates, strict=True)
            results.append(Result(name, max(stream_rates), "spans/s", max(alone_rates)))
            note = "without nats-server's; ceiling: the insert alone"
            results.append(Result(f"{name}: CPU", min(stream_cpu), "s per million spans", min(alone_cpu), note=note))
            print(table(item.as_json() for item in results[-2:]).split("\n", 2)[2], flush=True)
    return results


def main() -> list[Result]:
    """Measure and write."""
    with tempfile.TemporaryDirectory(prefix="bench-ingest-", ignore_cleanup_errors=True) as place:
        results = uvloop.run(measure(Path(place)))
    write("ingest", results)
    return results


if __name__ == "__main__":
    print(machine())
    main()
