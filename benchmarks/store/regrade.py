"""``python -m benchmarks.store.regrade``: stored rollouts graded again per second, without one model call.

10,000 rollouts of one model call and 2 kB of text are written into a store. `Regrading` reads them, two processes of a
function grade them, and the grades go over the bus into the store again. No inference node runs. The ceiling is the
same function over the same rollouts in memory.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import uvloop
from clickhouse_connect.driver.client import Client

from benchmarks.results import Result, machine, table, write
from benchmarks.store.database import create_database
from benchmarks.store.ingest import START_NS
from lightningbus.analysis.regrading import Regrading
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.graders.grading import Grading, open_grading
from lightningbus.graders.settings import GraderSettings
from lightningbus.graders.submission import Submission
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.base import Event
from lightningbus.schemas.spans import AttemptResult, ModelCall, Span, SpanBatch, VersionSpan
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord
from lightningbus.store.embedded.serving import serve_embedded
from lightningbus.store.ingest import arrow
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.ingester import Ingester
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata, Row
from lightningbus.store.ingest.writer import Writer
from lightningbus.store.settings import StoreSettings
from lightningbus.tasks.task_publisher import build_producer_span

RUN, GROUP_SIZE, TEXT_CHARS = "bench", 8, 2_000
FUNCTIONS = """
def of_result(task, result):
    return float(result == task["answer"])

def of_conversation(task, result, rollout):
    return float(str(task["answer"]) in rollout["messages"][-1]["content"])
"""


def events(num_rollouts: int) -> Iterator[Event]:
    """Tasks and rollouts: groups of eight, of which every other one is right."""
    for number in range(num_rollouts):
        name, sample = f"t{number // GROUP_SIZE:05}", number % GROUP_SIZE
        task = Task(id=name, run_id=RUN, agent="default", input={"answer": number % 2}, sample_index=sample)
        rollout = ids.rollout_id(name, sample)
        subject = subjects.task("train", "default")
        producer = build_producer_span(task, subject, START_NS + number, START_NS + number)
        yield TaskBatchRecord(tasks=(TaskRecord(task=task, rollout_id=rollout, span=producer),))
        yield _attempt(number, name, sample, rollout)


def _attempt(number: int, task: str, sample: int, rollout: str) -> SpanBatch:
    times = {"start_ns": START_NS + number, "end_ns": START_NS + number + 1}
    tokens = bytes(4 * 100)
    call = ModelCall(
        index=0,
        model="policy",
        node="n",
        prompt_ids=tokens,
        response_ids=tokens,
        logprobs=tokens,
        weight_versions=(VersionSpan(version=0, start=0, end=100),),
        request=json.dumps({"messages": [{"role": "user", "content": "x" * TEXT_CHARS}]}),
        response=json.dumps({"role": "assistant", "content": str(number % 2)}),
    )
    end = AttemptResult(
        outcome="ok", reward=0.0, num_spans=1, started_ns=times["start_ns"], ended_ns=times["end_ns"], result="0"
    )
    return SpanBatch(
        run_id=RUN,
        task_id=task,
        rollout_id=rollout,
        sample_index=sample,
        group_size=GROUP_SIZE,
        attempt=1,
        execution_id=f"e{number}",
        agent="default",
        mode="train",
        runner="r",
        sequence=0,
        spans=(
            Span(
                trace_id="t",
                span_id=f"{number:016x}",
                name="chat",
                call=call,
                start_ns=times["start_ns"],
                end_ns=times["end_ns"],
            ),
        ),
        end=end,
    )


def fill(client: Client, num_rollouts: int) -> None:
    """Write the rollouts as the ingester would."""
    types = load_column_types(client, "lightningbus")
    tables: dict[str, list[Row]] = defaultdict(list)
    for sequence, event in enumerate(events(num_rollouts)):
        for name, row in build_rows(event, EventMetadata(sequence, START_NS, lambda run: 0)):
            tables[name].append(row)
    for name, rows in tables.items():
        client.insert_arrow(name, arrow.rows_to_arrow(rows, types[name]), database="lightningbus")


async def in_memory(grading: Grading, num_rollouts: int) -> float:
    """Rollouts per second that the function alone grades."""
    started = time.monotonic()
    for first in range(0, num_rollouts, GROUP_SIZE * 32):
        submissions = [
            Submission(RUN, "t", f"t.{number}", f"e{number}", number, 1, {"answer": 1}, 1, ({"content": "1"},))
            for number in range(first, min(first + GROUP_SIZE * 32, num_rollouts))
        ]
        await grading.grade(submissions)
    return num_rollouts / (time.monotonic() - started)


async def measure(place: Path, num_rollouts: int) -> list[Result]:
    """Grade all rollouts by a function of the result, and by one of the conversation."""
    (place / "functions.py").write_text(FUNCTIONS)
    results = []
    async with (
        nats_server(place / "nats") as server,
        Bus.connect(server.url) as bus,
        serve_embedded(place / "store") as (engine, url),
    ):
        await bus.provision()
        client, settings = await asyncio.to_thread(create_database, url), StoreSettings()
        await asyncio.to_thread(fill, client, num_rollouts)
        types = await asyncio.to_thread(load_column_types, client, settings.database)
        stop = asyncio.Event()
        ingester = Ingester(bus, Writer(bus, engine.insert, settings.database, types), settings)
        ingesting = asyncio.create_task(ingester.run(stop))
        for name in ("of_result", "of_conversation"):
            fields = {"graders": {"f": {"function": f"functions:{name}"}}, "working_dir": place}
            graders = GraderSettings.model_validate(fields)
            async with open_grading(graders) as grading:
                ceiling = await in_memory(grading, num_rollouts)
                work = Regrading(bus, client, grading, graders.compute_sha256(), run=RUN, name=name)
                started = time.monotonic()
                done = await work.run(None, lambda graded, total: None)
                seconds = time.monotonic() - started
            assert (done.num_graded, done.num_failed, done.num_judge_calls) == (num_rollouts, 0, 0)
            note = f"{num_rollouts:,} rollouts in {seconds:.1f} s"
            results.append(Result(name.replace("_", " "), num_rollouts / seconds, "rollouts/s", ceiling, note=note))
        stop.set()
        await ingesting
    return results


def main(num_rollouts: int = 10_000) -> list[Result]:
    """Measure and write."""
    with tempfile.TemporaryDirectory(prefix="bench-regrade-", ignore_cleanup_errors=True) as place:
        results = uvloop.run(measure(Path(place), num_rollouts))
    write("regrade", results)
    print(table(item.as_json() for item in results))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=10_000)
    print(machine())
    main(parser.parse_args().rollouts)
