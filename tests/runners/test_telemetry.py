"""What an agent's instrumentation sends: on the bus before it is answered, and nothing of it thrown away."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError, StreamFullError
from lightningbus.runners.gateway.server import MAX_INLINE_BYTES, Gateway
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording import otlp
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.recording.usage import UsageMeter, total_seconds
from lightningbus.schemas import ids
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import ModelCall, Span, SpanBatch, VersionSpan
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import ScriptedEngine, ended, running, task

PROTOBUF = "application/x-protobuf"


def traces(count: int = 1) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name, scope.scope.version = "agent", "1.2"
    for number in range(count):
        span = scope.spans.add(name="tool", trace_id=b"\1" * 16, span_id=(number + 1).to_bytes(8, "big"))
        span.start_time_unix_nano, span.end_time_unix_nano = 5, 9
        span.trace_state = "vendor=1"
        link = span.links.add(trace_id=b"\2" * 16, span_id=b"\3" * 8)
        link.attributes.add(key="why").value.bytes_value = b"\xff"
    return request


class Bed:
    """A slot of a gateway with an attempt in it, and what its `send` does."""

    def __init__(self, slot: Slot, attempt: AttemptRecorder) -> None:
        self.slot, self.attempt = slot, attempt
        self.error: BusError | None = None
        self.sent: list[SpanBatch] = []

    async def send(self, attempt: AttemptRecorder, seconds: float) -> None:
        async with attempt.sending:
            while attempt.outbox:
                if self.error is not None:
                    raise self.error
                self.sent.append(attempt.outbox.pop(0))

    async def post(self, signal: str, body: bytes, kind: str = PROTOBUF, **headers: str) -> tuple[int, Any, bytes]:
        url = f"{self.slot.base_url}/otlp/v1/{signal}"
        fields = {"Content-Type": kind, "Authorization": f"Bearer {self.slot.key}", **headers}
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=fields) as answer:
            return answer.status, answer.headers, await answer.read()


@asynccontextmanager
async def bed(bus: Bus) -> AsyncIterator[Bed]:
    attempt = AttemptRecorder(task(), 1, "runner")
    async with bus.fleet("inference") as fleet:
        built = Bed(Slot(0), attempt)
        async with Gateway(fleet, lambda a, s: built.send(a, s), 1) as gateway:
            built.slot = gateway.slots[0]
            built.slot.environment()
            built.slot.begin(attempt, task(), asyncio.get_running_loop().time() + 60)
            yield built


@pytest.mark.parametrize("count", [3, 300])
async def test_spans_are_on_the_bus_when_they_are_answered(bus: Bus, count: int) -> None:
    """Of requests that are parsed in the event loop, and in a thread."""
    request = traces(count).SerializeToString()
    assert (len(request) > MAX_INLINE_BYTES) is (count == 300)
    async with bed(bus) as built:
        status, _, body = await built.post("traces", request)
        assert status == 200 and not ExportTraceServiceResponse.FromString(body).HasField("partial_success")
        (batch,) = built.sent
        assert [span.name for span in batch.spans] == ["tool"] * count and batch.sequence == 0 and batch.end is None


async def test_the_header_in_the_environment_means_the_same_read_as_it_is_and_unescaped(bus: Bus) -> None:
    """OpenTelemetry's exporters unescape what stands there; langsmith 0.15.0 does not."""
    async with bed(bus) as built:
        environment = built.slot.environment()["OTEL_EXPORTER_OTLP_HEADERS"]
        assert unquote(environment) == environment
        header, _, key = environment.partition("=")
        url = f"{built.slot.base_url}/otlp/v1/traces"
        async with aiohttp.ClientSession() as http:
            async with http.post(url, data=b"", headers={header: key, "Content-Type": PROTOBUF}) as answer:
                assert answer.status == 200
            async with http.post(url, data=b"", headers={header: "lb-guess", "Content-Type": PROTOBUF}) as answer:
                assert answer.status == 401


@pytest.mark.parametrize(("error", "expected"), [(StreamFullError("full"), 429), (BusError("gone"), 503)])
async def test_under_pressure_the_exporter_is_told_when_to_come_again(bus: Bus, error: BusError, expected: int) -> None:
    async with bed(bus) as built:
        built.error = error
        status, headers, body = await built.post("traces", traces().SerializeToString())
        assert (status, headers["Retry-After"]) == (expected, "1") and Status.FromString(body).message
        built.error = None
        status, _, _ = await built.post("traces", traces().SerializeToString())  # the same again, as exporters do
        assert status == 200
        assert [len(batch.spans) for batch in built.sent] == [1]


async def test_gzip_json_and_what_is_no_telemetry(bus: Bus) -> None:
    async with bed(bus) as built:
        packed = gzip.compress(traces().SerializeToString())
        assert (await built.post("traces", packed, **{"Content-Encoding": "gzip"}))[0] == 200
        fields = {
            "resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "05" * 8, "startTimeUnixNano": "1", "new": 1}]}]}]
        }
        status, _, body = await built.post("traces", json.dumps(fields).encode(), "application/json")
        assert status == 200 and json.loads(body) in ({}, {"partialSuccess": {}})
        status, _, body = await built.post("traces", b"\xff\xff")
        assert status == 400 and "not an OTLP request" in Status.FromString(body).message
        status, _, body = await built.post("nothing", b"")
        assert status == 404 and Status.FromString(body).message == "OTLP has no signal 'nothing'"
        status, _, body = await built.post("metrics", b"")
        assert (
            status == 200
            and "metrics are not kept" in ExportMetricsServiceResponse.FromString(body).partial_success.error_message
        )
        built.slot.end()
        assert (await built.post("traces", traces().SerializeToString()))[0] == 409


def test_nothing_of_a_span_is_thrown_away() -> None:
    request = traces().SerializeToString()
    unknown = bytes([0xF8, 0x3F, 0x07])  # field 1023, which this version of the protocol does not have
    parsed = ExportTraceServiceRequest.FromString(request)
    newer = parsed.resource_spans[0].scope_spans[0].spans[0].SerializeToString() + unknown
    parsed.resource_spans[0].scope_spans[0].spans[0].ParseFromString(newer)
    (span,) = otlp.parse_request("traces", parsed.SerializeToString(), PROTOBUF, "t.0", "root")
    assert span.attributes["otel.scope.version"] == "1.2"
    assert span.attributes["otel.trace_state"] == "vendor=1"
    assert span.attributes["lightningbus.otlp.unknown.1023"] == 7
    (link,) = span.links
    assert link["span_id"] == "03" * 8
    assert link["attributes"] == {"why": "/w==", "lightningbus.otlp.trace_id": "02" * 16}


@pytest.mark.parametrize("kind", [PROTOBUF, otlp.JSON])
def test_links_among_an_agents_spans_move_with_them_into_the_rollouts_trace(kind: str) -> None:
    """Links to what others traced stay: the flags tell whose span it is, where it has not come in the same request."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    local, remote = 0x100, 0x300
    links = {b"\1": remote, b"\2": remote, b"\3": local, b"\4": 0, b"\5": remote}
    for trace in (b"\1", b"\2"):
        span = spans.add(trace_id=trace * 16, span_id=trace * 8, start_time_unix_nano=1)
        for target, flags in links.items():
            span.links.add(trace_id=target * 16, span_id=target * 8, flags=flags)
    body = request.SerializeToString()
    if kind == otlp.JSON:
        fields = json_format.MessageToDict(request)
        body = json.dumps(with_hex_ids(fields)).encode()
    for moved in otlp.parse_request("traces", body, kind, "t.0", "root"):
        mine, foreign = ids.trace_id("t.0"), "05" * 16
        assert [link["trace_id"] for link in moved.links] == [mine, mine, mine, mine, foreign]
        assert [link["attributes"].get("lightningbus.otlp.trace_id") for link in moved.links] == [
            "01" * 16, "02" * 16, "03" * 16, "04" * 16, None,
        ]  # fmt: skip
        assert [link["span_id"] for link in moved.links] == [f"0{number}" * 8 for number in range(1, 6)]


def with_hex_ids(value: Any) -> Any:
    """Protobuf's JSON as OTLP writes it."""
    if isinstance(value, list):
        return [with_hex_ids(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(field).hex() if key in ("traceId", "spanId") else with_hex_ids(field)
        for key, field in value.items()
    }


def test_a_log_record_is_a_span_that_takes_no_time() -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=7, span_id=b"\4" * 8)
    record.event_name = "gen_ai.client.inference.operation.details"
    record.body.string_value = "hello"
    once, again = (
        otlp.parse_request("logs", request.SerializeToString(), PROTOBUF, "t.0", "root")[0] for _ in range(2)
    )
    assert (once.name, once.start_ns, once.end_ns, once.parent_span_id) == (record.event_name, 7, 7, "04" * 8)
    assert once.attributes["log.body"] == "hello" and once.span_id == again.span_id
    assert once.trace_id == ids.trace_id("t.0")


async def test_an_attempts_spans_come_in_batches_and_its_end_counts_them(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="odd:rewarded_by_span"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    assert batch.sequence >= 1 and batch.end.num_spans == len(batch.spans)
    assert 0 < batch.end.enqueued_ns <= batch.end.started_ns


def test_time_is_counted_once_where_calls_overlap() -> None:
    assert total_seconds([(0, 10**9), (5 * 10**8, 2 * 10**9), (3 * 10**9, 4 * 10**9)]) == 3.0
    meter = UsageMeter("policy")
    times = [("execute_tool a", 0, 2), ("execute_tool b", 1, 3), ("other", 0, 9)]
    for name, start, end in times:
        text = {attributes.OPERATION: "execute_tool"} if name != "other" else {}
        meter.add(
            Span(trace_id="t", span_id=name, name=name, start_ns=start * 10**9, end_ns=end * 10**9, attributes=text)
        )
    assert meter.usage().tool_seconds == 3.0 and meter.usage().model_seconds == 0.0


def test_versions_are_counted_by_model() -> None:
    meter = UsageMeter("policy")
    for model, version in [("policy", 3), ("checker", 9), ("policy", 4)]:
        call = ModelCall(
            index=0, model=model, node="n", prompt_ids=b"", response_ids=b"\0" * 4, logprobs=b"\0" * 4,
            weight_versions=(VersionSpan(version=version, start=0, end=1),),
        )  # fmt: skip
        meter.add_call(call, 0, Span(trace_id="t", span_id="s", name="chat", start_ns=0, end_ns=1, call=call))
    usage = meter.usage()
    assert (usage.min_weight_version, usage.max_weight_version) == (3, 4)
    assert usage.newest_versions == {"checker": 9, "policy": 4}
