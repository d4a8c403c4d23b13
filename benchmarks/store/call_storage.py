"""``python -m benchmarks.store.call_storage``: what a long conversation takes on the bus and on disk, by codec.

Against the plain way, where every call has its whole prompt and its whole request.
"""

import asyncio
import json
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from clickhouse_connect.driver.client import Client
from msgspec.structs import replace

from benchmarks.results import Result, machine, table, write
from benchmarks.store.database import create_database
from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.codec import encode
from lightningbus.schemas.spans import SpanBatch, VersionSpan
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls
from lightningbus.store.clickhouse.client import query_row
from lightningbus.store.embedded.serving import serve_embedded
from lightningbus.store.ingest import arrow
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata, Row

TURNS, TOKENS, SAMPLED = 100, 320, 64
"""A conversation of 32k tokens: each turn adds so many, so many of them sampled."""
ROLLOUTS = 3
WORDS = 20_000
CODECS = {
    "logprobs Array(Float32)": ("LZ4", "ZSTD(1)", "ZSTD(3)", "Gorilla, ZSTD(1)", "FPC(12), ZSTD(1)"),
    "response_ids Array(UInt32)": ("LZ4", "ZSTD(1)", "ZSTD(3)", "T64, ZSTD(1)", "Delta(4), ZSTD(1)"),
    "prompt_ids Array(UInt32)": ("LZ4", "ZSTD(1)", "T64, ZSTD(1)", "Delta(4), ZSTD(1)"),
    "token_versions Array(UInt32)": ("LZ4", "ZSTD(1)", "T64, ZSTD(1)", "Delta(4), ZSTD(1)"),
    "request String": ("LZ4", "ZSTD(1)", "ZSTD(3)", "ZSTD(6)"),
    "started_at DateTime64(9, 'UTC')": ("ZSTD(1)", "Delta, ZSTD(1)", "DoubleDelta, ZSTD(1)"),
}


def conversation(number: int) -> SpanBatch:
    """One rollout as its runner records it, words and tokens as frequent as in a language (Zipf)."""
    chance = np.random.default_rng(number)
    attempt = AttemptRecorder(Task(id=f"long-{number}", run_id="long", agent="default", input={}), 1, "runner")
    messages: list[dict[str, str]] = []
    tokens: list[int] = []
    for turn in range(TURNS):
        question, replies = _ids(chance, TOKENS - SAMPLED), _ids(chance, SAMPLED)
        messages.append({"role": "user", "content": _text(question)})
        tokens += question
        part = SampledChoice(
            model="policy", response_id="", prompt_ids=array("I", tokens).tobytes(),
            response_ids=array("I", replies).tobytes(),
            logprobs=(-chance.exponential(0.6, SAMPLED)).astype("<f4").tobytes(),
            token_texts=tuple(f" word{item}" for item in replies),
            weight_versions=(VersionSpan(version=7, start=0, end=SAMPLED),),
            finish_reason="stop", sampling={"temperature": 1.0},
            response=json.dumps({"role": "assistant", "content": _text(replies)}),
        )  # fmt: skip
        request = json.dumps({"model": "policy", "messages": messages})
        at = attempt.started_ns + turn * 1_000_000_000
        attempt.add_call(part, node="n", role="", request=request, started_ns=at, ended_ns=at + 900_000_000)
        messages.append({"role": "assistant", "content": _text(replies)})
        tokens += replies
    attempt.finish("ok", 1.0, "", "1.0")
    *before, last = attempt.outbox
    return replace(last, spans=tuple(span for batch in (*before, last) for span in batch.spans))


def _ids(chance: np.random.Generator, count: int) -> list[int]:
    return np.minimum(chance.zipf(1.2, count), WORDS).tolist()


def _text(ids: list[int]) -> str:
    return " ".join(f"word{item}" for item in ids)


def plain(batch: SpanBatch) -> SpanBatch:
    """The same with every prompt whole."""
    calls = iter(expand_calls([span.call for span in batch.spans if span.call is not None]))
    return replace(batch, spans=tuple(replace(s, call=next(calls)) if s.call is not None else s for s in batch.spans))


def rows(batches: list[SpanBatch]) -> Iterator[Row]:
    """What the store keeps of their calls."""
    for batch in batches:
        for name, row in build_rows(batch, EventMetadata(1, 0, lambda run: 0)):
            if name == "raw_call_payloads":
                yield row


def on_disk(client: Client, name: str) -> int:
    """Compressed bytes of a table."""
    client.command(f"OPTIMIZE TABLE {name} FINAL")
    sql = "SELECT sum(data_compressed_bytes) FROM system.parts WHERE active AND database = 'lightningbus'"
    return int(query_row(client, f"{sql} AND table = {{name:String}}", {"name": name})[0])


def bytes_per_rollout(client: Client, kept: list[SpanBatch]) -> list[Result]:
    """Ours beside the plain way."""
    types = load_column_types(client, "lightningbus")["raw_call_payloads"]
    client.command("CREATE TABLE plain AS raw_call_payloads")
    full = [plain(batch) for batch in kept]
    # One encoded span at a time: a whole plain rollout is more than a message may be.
    sent = [[sum(len(encode(span)) for span in batch.spans) for batch in lot] for lot in (kept, full)]
    client.insert_arrow("raw_call_payloads", arrow.rows_to_arrow(list(rows(kept)), types))
    client.insert_arrow("plain", arrow.rows_to_arrow(list(rows(full)), types))
    stored = [on_disk(client, name) / len(kept) for name in ("raw_call_payloads", "plain")]
    note = f"{TURNS} turns to {TURNS * TOKENS // 1000}k tokens; peer: every prompt whole"
    return [
        Result("on the bus, per rollout", sum(sent[0]) / len(kept), "B", peer=sum(sent[1]) / len(kept), note=note),
        Result("in ClickHouse, per rollout", stored[0], "B", peer=stored[1], note=note),
    ]


def codecs(client: Client) -> list[Result]:
    """Bytes of a column by codec, as a share of what LZ4, or the first, makes of it."""
    results = []
    for column, tried in CODECS.items():
        name, _, kind = column.partition(" ")
        smallest: float | None = None
        for codec in tried:
            client.command(f"CREATE TABLE one ({name} {kind} CODEC({codec})) ENGINE = MergeTree ORDER BY tuple()")
            client.command(f"INSERT INTO one SELECT {name} FROM raw_call_payloads")
            size = float(on_disk(client, "one")) / ROLLOUTS
            client.command("DROP TABLE one SYNC")
            smallest = size if smallest is None else smallest
            results.append(Result(f"{name}, {codec}", size, "B per rollout", smallest))
    return results


async def measure(place: Path) -> list[Result]:
    """Both."""
    kept = [conversation(number) for number in range(ROLLOUTS)]
    async with serve_embedded(place) as (_, url):
        client = await asyncio.to_thread(create_database, url)
        per_rollout = await asyncio.to_thread(bytes_per_rollout, client, kept)
        return [*per_rollout, *await asyncio.to_thread(codecs, client)]


def main() -> list[Result]:
    """Measure and write."""
    with tempfile.TemporaryDirectory(prefix="bench-call-storage-", ignore_cleanup_errors=True) as place:
        results = asyncio.run(measure(Path(place)))
    write("call_storage", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    print(machine())
    main()
