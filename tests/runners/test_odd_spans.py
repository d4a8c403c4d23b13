"""One odd span costs itself: the others of its request are kept, and the exporter learns how many are not, and why."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from lightningbus.bus.client import Bus
from lightningbus.common.observability import metrics
from lightningbus.runners.recording import otlp
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.recording.refusals import Refusals
from lightningbus.schemas.base import MAX_TIME_NS
from lightningbus.schemas.spans import Span
from tests.runners.conftest import task
from tests.runners.test_telemetry import PROTOBUF, bed

GOOD = {"traceId": "01" * 16, "spanId": "0a" * 8, "name": "good", "startTimeUnixNano": "5", "endTimeUnixNano": "9"}
HALF = "cut \ud83d"

REFUSED: dict[str, Any] = {
    "a short id": {"spanId": "abc"},
    "an id that is no text": {"spanId": 7},
    "an id of another length": {"spanId": "0b" * 16},
    "an id of zeros": {"spanId": "00" * 8},
    "no id": {"spanId": ""},
    "a null id": {"spanId": None},
    "an odd trace": {"traceId": "xyz"},
    "an odd parent": {"parentSpanId": "root"},
    "a negative time": {"startTimeUnixNano": -5},
    "a time beyond 64 bits": {"startTimeUnixNano": str(2**64)},
    "a time in words": {"startTimeUnixNano": "yesterday"},
    "attributes by name": {"attributes": {"key": "value"}},
    "a null attribute": {"attributes": [None]},
    "a number beyond 64 bits": {"attributes": [{"key": "n", "value": {"intValue": str(2**70)}}]},
    "a name that is no text": {"name": ["x"]},
    "a null event": {"events": [None]},
    "a link to an odd id": {"links": [{"traceId": "01" * 16, "spanId": "?"}]},
}
KEPT: dict[str, Any] = {
    "a null parent": {"parentSpanId": None},
    "an id in base64": {"spanId": "CwsLCwsLCws="},
    "an id in upper case": {"spanId": "0B" * 8},
    "a trace in base64 for URLs": {"traceId": "_" * 21 + "w"},
    "null attributes": {"attributes": None},
    "half a character": {"name": HALF, "attributes": [{"key": HALF, "value": {"stringValue": HALF}}]},
    "half a character in what is new": {"new": HALF},
    "an unknown kind": {"kind": "SPAN_KIND_NEW"},
}


def read(spans: list[Any], refusals: Refusals) -> list[Span]:
    body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    return otlp.parse_request("traces", json.dumps(body).encode(), otlp.JSON, "t.0", "root", refusals)


@pytest.mark.parametrize("odd", [*({**GOOD, "spanId": "0b" * 8, **odd} for odd in REFUSED.values()), None, 5, "x", []])
def test_an_odd_span_of_json_is_refused_and_its_neighbours_are_kept(odd: Any) -> None:
    refusals = Refusals()
    spans = read([GOOD, odd, {**GOOD, "spanId": "0c" * 8}], refusals)
    assert [span.span_id for span in spans] == ["0a" * 8, "0c" * 8]
    assert refusals.total == 1 and refusals.describe().startswith("1 refused: ")


@pytest.mark.parametrize("odd", KEPT.values(), ids=KEPT)
def test_what_can_be_read_is_kept(odd: dict[str, Any]) -> None:
    refusals = Refusals()
    first, second = read([GOOD, {**GOOD, "spanId": "0b" * 8, **odd}], refusals)
    assert refusals.total == 0 and second.span_id == "0b" * 8 and second.parent_span_id == "root"
    assert "\ud83d" not in repr(second)
    assert first.name == "good"


def test_the_protocols_own_names_are_read_and_their_ids_are_hexadecimal() -> None:
    span = {"trace_id": "01" * 16, "span_id": "0b" * 8, "parent_span_id": "0a" * 8, "name": "odd"}
    span |= {"start_time_unix_nano": "5", "end_time_unix_nano": "9", "attributes": [{"key": "a", "value": {}}]}
    body = {"resource_spans": [{"scope_spans": [{"spans": [GOOD, span]}]}]}
    refusals = Refusals()
    good, odd = otlp.parse_request("traces", json.dumps(body).encode(), otlp.JSON, "t.0", "root", refusals)
    assert (good.span_id, odd.span_id, odd.parent_span_id) == ("0a" * 8, "0b" * 8, "0a" * 8)
    assert (odd.start_ns, odd.end_ns, refusals.total) == (5, 9, 0)
    assert not [name for name in odd.attributes if name.startswith("lightningbus.otlp.unknown")]


def test_a_resource_that_cannot_be_read_costs_its_own_spans() -> None:
    groups: list[Any] = [
        {"resource": {"attributes": "none"}, "scopeSpans": [{"spans": [GOOD, GOOD]}]},
        {"resource": None, "scopeSpans": [{"scope": 5, "spans": [GOOD]}, {"spans": [{**GOOD, "spanId": "0b" * 8}]}]},
        None,
    ]
    refusals = Refusals()
    body = json.dumps({"resourceSpans": groups}).encode()
    spans = otlp.parse_request("traces", body, otlp.JSON, "t.0", "root", refusals)
    assert [span.span_id for span in spans] == ["0b" * 8] and refusals.total == 3


def protobuf(change: Callable[[ProtoSpan], None]) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "agent é"
    spans = group.scope_spans.add().spans
    for number in range(3):
        span = spans.add(span_id=bytes([number + 10]) * 8, name=f"tool {number}", start_time_unix_nano=5)
        span.attributes.add(key="text").value.string_value = "cut amid WXYZ"
    change(spans[1])
    return request


@pytest.mark.parametrize("odd", [b"", b"abc", bytes(8), b"\1" * 16])
def test_an_odd_id_of_protobuf_is_refused_and_its_neighbours_are_kept(odd: bytes) -> None:
    def change(span: ProtoSpan) -> None:
        span.span_id = odd

    refusals = Refusals()
    spans = otlp.parse_request("traces", protobuf(change).SerializeToString(), PROTOBUF, "t.0", "root", refusals)
    assert [span.name for span in spans] == ["tool 0", "tool 2"] and refusals.kinds["id"] == refusals.total == 1


@pytest.mark.parametrize("wrong", [b"\xf0\x9f\x98?", b"\xff\xfe\xfd\xfc", b"\xed\xa0\xbd?", b"\xe2\x82\x80\xc3"])
def test_texts_of_protobuf_that_are_not_utf_8_are_kept_as_far_as_they_are(wrong: bytes) -> None:
    body = protobuf(lambda span: None).SerializeToString().replace(b"WXYZ", wrong, 2)
    body = body.replace(b"tool 2", b"too\xe2\x82 ")
    refusals = Refusals()
    spans = otlp.parse_request("traces", body, PROTOBUF, "t.0", "root", refusals)
    assert [span.name for span in spans[:2]] == ["tool 0", "tool 1"] and refusals.total == 0
    assert spans[2].name == "too\ufffd " and spans[2].attributes["text"] == "cut amid WXYZ"
    assert all(span.attributes["text"].startswith("cut amid ") for span in spans)
    assert all(span.resource == {"service.name": "agent é"} for span in spans)


def test_a_time_that_no_table_holds_is_refused_and_counted() -> None:
    before = metrics.spans_refused.labels("time")._value.get()
    recorder = AttemptRecorder(task(), 1, "runner")
    spans = [
        Span(trace_id="t", span_id=str(end), name="x", start_ns=5, end_ns=end)
        for end in (MAX_TIME_NS, MAX_TIME_NS + 1, 11651379494838206464, 2**64 - 1)
    ]
    refusals = [recorder.add(span) for span in spans]
    assert [refusal and refusal.kind for refusal in refusals] == [None, "time", "time", "time"]
    assert recorder.num_spans == 1 and recorder.dropped_spans == 3
    assert metrics.spans_refused.labels("time")._value.get() == before + 3


@pytest.mark.parametrize("kind", [PROTOBUF, otlp.JSON])
async def test_the_exporter_learns_how_many_spans_are_refused_and_why(bus: Bus, kind: str) -> None:
    def change(span: ProtoSpan) -> None:
        span.start_time_unix_nano = 11651379494838206464

    request = protobuf(change)
    request.resource_spans[0].scope_spans[0].spans.add(name="no id")
    body = request.SerializeToString()
    if kind == otlp.JSON:
        body = json_format.MessageToJson(request).encode()  # with ids in base64
    async with bed(bus) as built:
        status, _, answer = await built.post("traces", body, kind)
        (batch,) = built.sent
        built.attempt.finish("ok", 1.0, "", "")
        root = built.attempt.outbox[-1].spans[-1]
    assert status == 200 and [span.name for span in batch.spans] == ["tool 0", "tool 2"]
    response = ExportTraceServiceResponse()
    if kind == otlp.JSON:
        json_format.Parse(answer, response)
    else:
        response.ParseFromString(answer)
    assert response.partial_success.rejected_spans == 2
    assert "1 refused: it has no spanId" in response.partial_success.error_message
    assert "11651379494838206464 ns is after the year 2262" in response.partial_success.error_message
    assert root.attributes["lightningbus.spans.dropped"] == 2


async def test_odd_log_records_cost_no_other(bus: Bus) -> None:
    good = {"timeUnixNano": "5", "body": {"stringValue": HALF}}
    records = [good, {**good, "spanId": "xyz"}, {**good, "spanId": None, "timeUnixNano": "6"}, None]
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    async with bed(bus) as built:
        status, _, answer = await built.post("logs", body, otlp.JSON)
        (batch,) = built.sent
    response = json_format.Parse(answer, ExportLogsServiceResponse())
    assert status == 200 and response.partial_success.rejected_log_records == 2
    assert [(span.start_ns, span.attributes["log.body"]) for span in batch.spans] == [(5, "cut ?"), (6, "cut ?")]
