"""The agent of the store workloads with OpenTelemetry's SDK in its process, as the peer's agents have it.

One rollout at a time in a process. Its spans leave together when the rollout ends: the runner flushes the provider.

``python -m benchmarks.workloads.otel_agent N ROUNDS`` runs N rollouts one after the other, without any system around
them. It prints "ready" and begins when it has read a line.
"""

import asyncio
import os
import random
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.workloads.payload import pool

CHANCE = random.Random(os.getpid())
POOL = pool(os.getpid())
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(PROVIDER)
TRACER = trace.get_tracer(__name__)


async def work(task: dict[str, Any]) -> float:
    """One rollout: ``{"id": ..., "rounds": R at most, "sleep": seconds}``; returns its reward."""
    rounds = CHANCE.randint(1, task["rounds"])
    named = CHANCE.randrange(rounds)
    for number in range(rounds):
        with TRACER.start_as_current_span(f"round-{number}"):
            await step(f"round-{number}-1", task["sleep"], task["id"] if number == named else None)
            await step(f"round-{number}-2", task["sleep"])
        if CHANCE.random() < 0.5:
            emit_reward(CHANCE.random())
    await step("final", task["sleep"])
    reward = CHANCE.uniform(1, 2)
    emit_reward(reward)
    return reward


async def step(name: str, most: float, task_id: str | None = None) -> None:
    """A span that sleeps and carries attributes; the task's id last, since a span keeps the last 128 attributes."""
    with TRACER.start_as_current_span(name) as span:
        if most:
            await asyncio.sleep(CHANCE.uniform(0, most))
        span.set_attributes(CHANCE.choice(POOL))
        if task_id is not None:
            span.set_attribute("task", task_id)


def emit_reward(value: float) -> None:
    """A span with a reward, as Agent Lightning's ``emit_reward`` makes it."""
    with TRACER.start_as_current_span("agentlightning.annotation") as span:
        span.set_attributes({"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value})


async def work_alone(num_rollouts: int, rounds: int) -> None:
    """Rollouts one after the other; their spans go to wherever OpenTelemetry's variables say."""
    for number in range(num_rollouts):
        await work({"id": f"alone-{number}", "rounds": rounds, "sleep": 0.0})
        PROVIDER.force_flush()


if __name__ == "__main__":
    asyncio.run(work_alone(1, 1))
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(work_alone(int(sys.argv[1]), int(sys.argv[2])))
