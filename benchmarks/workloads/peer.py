"""A store workload run on Agent Lightning 0.3: what ours is measured beside.

The rollouts are those of ``tests/benchmark/benchmark_store.py`` of Agent Lightning 0.3.0, which its wheel lacks. They
are written anew here from their parameters. Nothing of lightningbus is imported: this file is run by the interpreter of
an environment of its own, made with ::

    python3.11 -m venv env
    env/bin/pip install agentlightning==0.3.0 opentelemetry-exporter-otlp==1.39.1 httptools

The second pin is needed: Agent Lightning sets the exporter's address after the exporter was made, OpenTelemetry 1.45 no
longer reads it then, and no span arrives. ``httptools`` is a faster parser, which the store's server takes by itself.

One process is the store (``agl store``, in memory), each runner is one, and this one is the algorithm. The tracer is
Agent Lightning's default, `AgentOpsTracer`, which sends the spans of a rollout together; `OtelTracer` sends each by
itself and is slower. Where upstream's benchmark leaves room, the peer gets what makes it fastest: polls every tenth of
a second instead of every five seconds, tasks enqueued in bulk, no log, and a clock that starts only when every runner
is at work. As on our side, attributes are drawn from a pool made once, before the runners are forked: making them is no
part of what is measured.

With ``--kill`` the store gets SIGKILL when half of the rollouts are read back, and is started again at its address.
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
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or its import waits for prices from the network
os.environ |= {"AGENTOPS_LOG_LEVEL": "CRITICAL", "AGENTOPS_LOGGING_TO_FILE": "false"}  # it writes a line for each trace

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


class StoreKilledError(Exception):
    """The store was killed, as was asked for; the workload ends here."""


class Workload(agl.Algorithm):
    """Enqueues tasks, waits for them and reads every span back; ``seconds`` is what that took."""

    def __init__(self, options: argparse.Namespace, server: "Server") -> None:
        self.options, self.server = options, server
        self.read_back: list[str] = []
        """Ids of rollouts that came back whole."""
        self.lost = self.spans = 0
        """Rollouts that ended without success or lack a span; spans that came back."""
        self.readable_after_kill: int | None = None
        self.seconds = 0.0

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        try:
            async with asyncio.timeout(self.options.timeout):
                await self.warm()
                self.read_back, self.lost, self.spans = [], 0, 0
                begun = time.perf_counter()
                for first in range(0, self.options.total, self.options.batch):
                    await self.wave(self.names(first))
                    if self.options.kill and len(self.read_back) >= self.options.total / 2:
                        await self.kill()
                self.seconds = time.perf_counter() - begun
        finally:
            await self.get_store().close()

    async def kill(self) -> None:
        """Kill the store, start it again, and count which of the rollouts it still has."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)
        kept = await self.get_store().query_rollouts(rollout_id_in=self.read_back)
        self.readable_after_kill = len(list(kept))
        raise StoreKilledError

    async def warm(self) -> None:
        """Until each runner has asked for work, and then a rollout for each, which opens the connections."""
        async with asyncio.timeout(STARTING):
            while len(await self.get_store().query_workers()) < self.options.runners:  # no event for it
                await asyncio.sleep(self.options.poll)
            await self.wave([f"warm-{number}" for number in range(self.options.runners)])

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

    async def settle(self, rollouts: Iterable[agl.Rollout], pending: dict[str, str]) -> None:
        """Read back and check those that have ended, and take them out of ``pending``."""
        for rollout in [rollout for rollout in rollouts if rollout.status in ENDED]:
            name = pending.pop(rollout.rollout_id)
            spans = await self.get_store().query_spans(rollout_id=rollout.rollout_id, attempt_id="latest")
            reward = agl.find_final_reward(spans)
            named = any(span.attributes.get("task") == name for span in spans)
            if rollout.status == "succeeded" and reward is not None and 1 <= reward <= 2 and named:
                self.read_back.append(rollout.rollout_id)
            else:
                self.lost += 1
            self.spans += len(spans)


class Server:
    """A store of its own, on a free port of the loopback."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it answers."""
        command = [sys.executable, "-m", "agentlightning.cli.store", "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen([*command, "--log-level", "WARNING"], stdout=sys.stderr)
        until = time.monotonic() + STARTING
        while True:
            try:
                urllib.request.urlopen(f"{self.address}/v1/agl/health", timeout=5).close()
                return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the store does not answer (exit status {self.process.poll()})") from error
                time.sleep(0.1)

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A store workload, run on Agent Lightning 0.3.")
    parser.add_argument("--total", type=int, default=512, help="rollouts")
    parser.add_argument("--batch", type=int, default=128, help="rollouts that are enqueued together")
    parser.add_argument("--runners", type=int, default=8, help="runner processes")
    parser.add_argument("--rounds", type=int, default=3, help="most rounds of a rollout")
    parser.add_argument("--sleep", type=float, default=0.0, help="longest sleep within a span, in seconds")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between polls")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which it has failed")
    parser.add_argument("--kill", action="store_true", help="kill the store half-way, and count what it has then")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peer: told to stop"))  # so that what was started is ended too
    agl.setup_logging("WARNING", color=False)  # in colour it logs to stdout, which the result has to itself
    server = Server()
    workload, tracer = Workload(options, server), agl.AgentOpsTracer()
    try:
        server.start()
        agl.Trainer(
            store=agl.LightningStoreClient(server.address),
            algorithm=workload,
            tracer=tracer,
            runner=agl.LitAgentRunner(tracer, poll_interval=options.poll, interval_jitter=options.poll / 2),
            strategy=agl.ClientServerExecutionStrategy("both", n_runners=options.runners, managed_store=False),
        ).fit(agent_of([attributes() for _ in range(POOL)], options.rounds, options.sleep))
    except TimeoutError:
        sys.exit(f"peer: out of time, with {len(workload.read_back)} of {options.total} rollouts read back and checked")
    except StoreKilledError:
        pass
    finally:
        server.kill()
    result = {
        "rollouts": len(workload.read_back) + workload.lost,
        "lost": workload.lost,
        "spans": workload.spans,
        "readable_after_kill": workload.readable_after_kill,
        "seconds": workload.seconds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
