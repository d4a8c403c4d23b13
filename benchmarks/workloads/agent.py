"""The agent of the store workloads: it calls no model, sleeps, and emits its spans by OTLP in one request."""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from benchmarks.workloads.payload import pool

CHANCE = random.Random(os.getpid())
POOL = [
    [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in attributes.items()]
    for attributes in pool(os.getpid())
]
SESSION: list[aiohttp.ClientSession] = []
"""One per process, made in its event loop."""


async def work(task: dict[str, Any], endpoint: Any) -> float:
    """One rollout: ``{"id": ..., "rounds": R at most, "sleep": seconds}``; returns its reward."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name = "workload"
    trace = CHANCE.randbytes(16)
    for _ in range(CHANCE.randint(1, task["rounds"])):
        outer = _span(scope, trace, "round")
        for name in ("first", "second"):
            await _sleep(_span(scope, trace, name, outer.span_id, CHANCE.choice(POOL)), task["sleep"])
        outer.end_time_unix_nano = time.time_ns()
        if CHANCE.random() < 0.5:
            _reward(_span(scope, trace, "reward"), CHANCE.random())
    named = [KeyValue(key="task", value=AnyValue(string_value=task["id"]))]
    await _sleep(_span(scope, trace, "final", attributes=named), task["sleep"])
    reward = CHANCE.uniform(1, 2)
    _reward(_span(scope, trace, "final reward"), reward)
    await _export(request, endpoint)
    return reward


async def _sleep(span: Span, most: float) -> None:
    if most:
        await asyncio.sleep(CHANCE.uniform(0, most))
    span.end_time_unix_nano = time.time_ns()


async def _export(request: ExportTraceServiceRequest, endpoint: Any) -> None:
    if not SESSION:
        SESSION.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)))
    header, _, key = endpoint.otlp_headers.partition("=")
    headers = {"Content-Type": "application/x-protobuf", header: key}
    url, body = f"{endpoint.otlp_endpoint}/v1/traces", request.SerializeToString()
    async with SESSION[0].post(url, data=body, headers=headers) as answer:
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the spans were answered with {answer.status}")


def _span(scope: ScopeSpans, trace: bytes, name: str, parent: bytes = b"", attributes: Sequence[KeyValue] = ()) -> Span:
    now = time.time_ns()
    return scope.spans.add(
        trace_id=trace,
        span_id=CHANCE.randbytes(8),
        parent_span_id=parent,
        name=name,
        start_time_unix_nano=now,
        end_time_unix_nano=now,
        attributes=attributes,
    )


def _reward(span: Span, value: float) -> None:
    span.attributes.add(key="agentlightning.reward.0.value").value.double_value = value
