"""Agent Lightning's own store workloads, run on Agent Lightning: what ours is measured beside.

The workloads are those of ``tests/benchmark/benchmark_store.py`` of Agent Lightning 0.3.0, which its wheel lacks. They
are written anew here from their parameters. Nothing of lightningbus is imported: this file is run by the interpreter of
an environment of its own, made with ::

    python3.11 -m venv env
    env/bin/pip install agentlightning==0.3.0 opentelemetry-exporter-otlp==1.39.1 httptools

The second pin is needed: Agent Lightning sets the exporter's address after the exporter was made, OpenTelemetry 1.45 no
longer reads it then, and no span arrives. ``httptools`` is a faster parser, which the store's server takes by itself.

One process is the store (``agl store``, in memory), each runner is one, and this one is the algorithm. Where upstream's
benchmark leaves room, the peer gets what makes it fastest: the plain OpenTelemetry tracer instead of AgentOps, polls
every tenth of a second instead of every five seconds (every second in ``single``, where more would cost the store more
than they gain), tasks enqueued in bulk, no log, and a clock that starts only when every runner is at work. As on our
side, attributes are drawn from a pool made once, before the runners are forked: making them is no part of what is
measured.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import string
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or its import waits for prices from the network

import agentlightning as agl
from agentlightning.types import EnqueueRolloutRequest
from opentelemetry import trace

POOL = 64
STARTING = 60.0
"""Seconds within which the store must answer, and within which every runner must be at work."""
ENDED = ("succeeded", "failed", "cancelled")


def attributes() -> dict[str, str]:
    """One span's attributes: a random tree of 1 to 3 levels with 2 to 6 keys each, its paths joined by dots; ~5 kB."""

    def word(shortest: int, longest: int) -> str:
        return "".join(random.choices(string.ascii_letters + string.digits, k=random.randint(shortest, longest)))

    def level(depth: int, prefix: str) -> Iterator[tuple[str, str]]:
        deepest = random.randint(depth, 3)
        for _ in range(random.randint(2, 6)):
            key = prefix + word(3, 20)
            if depth == deepest:
                yield key, word(5, 300)
            else:
                yield from level(depth + 1, f"{key}.")

    return dict(level(1, ""))


def agent_of(pool: list[dict[str, str]], most_rounds: int, sleep: float) -> agl.LitAgent[str]:
    """An agent that calls no model: it sleeps, and says in spans that it did."""
    tracer = trace.get_tracer(__name__)  # a proxy: the provider is made later, in the runner's process

    async def work(name: str, task: str | None = None) -> None:
        with tracer.start_as_current_span(name) as span:
            if sleep:
                await asyncio.sleep(random.uniform(0, sleep))
            span.set_attributes(random.choice(pool))
            if task is not None:  # last, since a span keeps the last 128 attributes only
                span.set_attribute("task", task)

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> None:
        rounds = random.randint(1, most_rounds)
        named = random.randrange(rounds)
        for number in range(rounds):
            with tracer.start_as_current_span(f"round-{number}"):
                await work(f"round-{number}-1", task if number == named else None)
                await work(f"round-{number}-2")
            if random.random() < 0.5:
                agl.emit_reward(random.uniform(0, 1))
        await work("final")
        agl.emit_reward(random.uniform(1, 2))

    return agent


class Workload(agl.Algorithm):
    """Enqueues tasks, waits for them and reads every span back; ``seconds`` is what that took."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rollouts = self.spans = 0
        self.seconds = 0.0

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        modes = {"batch": self.batch, "batch_partial": self.batch_partial, "single": self.single}
        try:
            async with asyncio.timeout(self.options.timeout):
                await self.warm()
                self.rollouts = self.spans = 0
                begun = time.perf_counter()
                await modes[self.options.mode]()
                self.seconds = time.perf_counter() - begun
        finally:
            await self.get_store().close()

    async def warm(self) -> None:
        """Until each runner has asked for work, and then a rollout for each, which opens the connections."""
        async with asyncio.timeout(STARTING):
            while len(await self.get_store().query_workers()) < self.options.runners:  # no event for it
                await asyncio.sleep(self.options.poll)
            await self.wave([f"warm-{number}" for number in range(self.options.runners)])

    async def batch(self) -> None:
        """One batch after the other, each complete before the next."""
        for first in range(0, self.options.total, self.options.batch):
            await self.wave(self.names(first))

    async def batch_partial(self) -> None:
        """The next batch as soon as fewer than ``remaining`` rollouts are under way."""
        pending: dict[str, str] = {}
        first = 0
        while first < self.options.total or pending:
            if first < self.options.total and len(pending) < self.options.remaining:
                pending |= await self.enqueue(self.names(first))
                first += self.options.batch
            elif not await self.settle(await self.get_store().query_rollouts(rollout_id_in=list(pending)), pending):
                await asyncio.sleep(self.options.poll)

    async def single(self) -> None:
        """Every task by itself, ``concurrency`` of them at a time, each asked after by its own id."""
        gate = asyncio.Semaphore(self.options.concurrency)

        async def run_rollout(name: str) -> None:
            async with gate:
                pending = await self.enqueue([name])
                (rollout_id,) = pending
                while pending:
                    await asyncio.sleep(self.options.poll)
                    rollout = await self.get_store().get_rollout_by_id(rollout_id)
                    await self.settle([rollout] if rollout else [], pending)

        await asyncio.gather(*(run_rollout(f"task-{number}") for number in range(self.options.total)))

    def names(self, first: int) -> list[str]:
        """The tasks of the batch that starts at this number."""
        return [f"task-{number}" for number in range(first, min(first + self.options.batch, self.options.total))]

    async def wave(self, names: list[str]) -> None:
        """Tasks that are all done before this returns."""
        pending = await self.enqueue(names)
        while pending:
            await asyncio.sleep(self.options.poll)
            await self.settle(await self.get_store().wait_for_rollouts(rollout_ids=list(pending), timeout=0.0), pending)

    async def enqueue(self, names: list[str]) -> dict[str, str]:
        """The tasks by the ids that the store gave their rollouts, after a new version of the resources."""
        await self.get_store().add_resources({"llm": agl.LLM(endpoint="http://127.0.0.1/v1", model="none")})
        requests = [EnqueueRolloutRequest(input=name, mode="train") for name in names]
        return {rollout.rollout_id: rollout.input for rollout in await self.get_store().enqueue_many_rollouts(requests)}

    async def settle(self, rollouts: Iterable[agl.Rollout], pending: dict[str, str]) -> int:
        """Read back and check those that have ended, and take them out of ``pending``; how many these were."""
        ended = [rollout for rollout in rollouts if rollout.status in ENDED]
        for rollout in ended:
            name = pending.pop(rollout.rollout_id)
            if rollout.status != "succeeded":
                raise RuntimeError(f"the rollout of {name} has {rollout.status}")
            spans = await self.get_store().query_spans(rollout_id=rollout.rollout_id, attempt_id="latest")
            reward = agl.find_final_reward(spans)
            if reward is None or not 1 <= reward <= 2:
                raise RuntimeError(f"the final reward of {name} came back as {reward}, with {len(spans)} spans")
            if not any(span.attributes.get("task") == name for span in spans):
                raise RuntimeError(f"none of the {len(spans)} spans of {name} names its task")
            self.rollouts += 1
            self.spans += len(spans)
        return len(ended)


@contextmanager
def store_server() -> Iterator[str]:
    """The address of a store of its own, on a free port of the loopback; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "agentlightning.cli.store", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "WARNING"], stdout=sys.stderr)
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + STARTING
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/v1/agl/health", timeout=5).close()
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the store does not answer (exit status {process.poll()})") from error
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Agent Lightning's store workloads, run on Agent Lightning.")
    parser.add_argument("--mode", choices=("batch", "batch_partial", "single"), default="batch")
    parser.add_argument("--total", type=int, default=400, help="rollouts")
    parser.add_argument("--batch", type=int, default=128, help="rollouts that are enqueued together")
    parser.add_argument("--remaining", type=int, default=64, help="batch_partial: with fewer left, a batch follows")
    parser.add_argument("--concurrency", type=int, default=64, help="single: rollouts under way at a time")
    parser.add_argument("--runners", type=int, default=8, help="runner processes")
    parser.add_argument("--rounds", type=int, default=3, help="most rounds of a rollout")
    parser.add_argument("--sleep", type=float, default=0.0, help="longest sleep within a span, in seconds")
    parser.add_argument("--poll", type=float, help="seconds between polls [0.1; single: 1]")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which it has failed")
    options = parser.parse_args()
    options.poll = options.poll or (1.0 if options.mode == "single" else 0.1)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peer: told to stop"))  # so that what was started is ended too
    agl.setup_logging("WARNING", color=False)  # in colour it logs to stdout, which the result has to itself
    workload, tracer = Workload(options), agl.OtelTracer()
    try:
        with store_server() as address:
            agl.Trainer(
                store=agl.LightningStoreClient(address),
                algorithm=workload,
                tracer=tracer,
                runner=agl.LitAgentRunner(tracer, poll_interval=options.poll, interval_jitter=options.poll / 2),
                strategy=agl.ClientServerExecutionStrategy("both", n_runners=options.runners, managed_store=False),
            ).fit(agent_of([attributes() for _ in range(POOL)], options.rounds, options.sleep))
    except TimeoutError:
        sys.exit(f"peer: out of time, with {workload.rollouts} of {options.total} rollouts read back and checked")
    result = {"rollouts": workload.rollouts, "spans": workload.spans, "seconds": round(workload.seconds, 3)}
    print(json.dumps(result | {"rollouts_per_s": round(workload.rollouts / workload.seconds, 2), "checked": True}))


if __name__ == "__main__":
    main()
