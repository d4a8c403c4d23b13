"""Spans as other libraries write them: their kind, name and payloads are found, and odd values keep their meaning."""

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from lightningbus.runners.recording import otlp
from lightningbus.runners.recording.otlp_limits import InvalidOtlpError
from lightningbus.schemas.semconv.attributes import to_text
from lightningbus.schemas.semconv.span_kinds import entity_name, kind_of, payload_keys
from lightningbus.schemas.spans import Span
from tests.runners.test_otlp import telemetry

TIMES = ("time_unix_nano", "observed_time_unix_nano")
JSON, PROTOBUF = "application/json", "application/x-protobuf"


def pairs(**values: Any) -> list[dict[str, Any]]:
    return [{"key": key.replace("__", "."), "value": value} for key, value in values.items()]


def texts(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]


def read(**fields: Any) -> Span:
    span = {"traceId": "01" * 16, "spanId": "02" * 8, "name": "add", "startTimeUnixNano": "5", **fields}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    (converted,) = otlp.parse_request("traces", json.dumps(body).encode(), JSON, "t.0", "root")
    return converted


def described(span: Span) -> tuple[str, ...]:
    keys = payload_keys(span.attributes)
    payloads = (str(span.attributes.get(keys.get(label, ""), "")) for label in ("input", "output"))
    return kind_of(span.name, span.attributes), entity_name(span.name, span.attributes), *payloads


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            {"langfuse.observation.type": "tool"}
            | {"langfuse.observation.input": "1", "langfuse.observation.output": "2"},
            ("tool", "add", "1", "2"),
        ),
        ({"langfuse.observation.type": "agent", "langfuse.observation.input": "1"}, ("agent", "add", "1", "")),
        ({"langfuse.observation.type": "retriever"}, ("retriever", "", "", "")),
        ({"langfuse.observation.type": "generation"}, ("model", "", "", "")),
        (
            {"ai.operationId": "ai.toolCall", "ai.toolCall.name": "sum"}
            | {"ai.toolCall.args": "1", "ai.toolCall.result": "2"},
            ("tool", "sum", "1", "2"),
        ),
        ({"ai.operationId": "ai.generateText.doGenerate", "ai.response.text": "2"}, ("model", "", "", "2")),
    ],
)
def test_a_span_of_another_library_is_known(attributes: dict[str, str], expected: tuple[str, ...]) -> None:
    assert described(read(attributes=texts(attributes))) == expected


def test_input_and_output_in_events_are_those_of_the_tool() -> None:
    events = [
        {"name": "gen_ai.tool.message", "attributes": texts({"role": "tool", "content": '{"a": 1}', "id": "c"})},
        {"name": "gen_ai.choice", "attributes": texts({"message": '[{"text": "2"}]', "id": "c"})},
    ]
    of_tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "sum"}
    assert described(read(attributes=texts(of_tool), events=events)) == ("tool", "sum", '{"a": 1}', '[{"text": "2"}]')
    with_arguments = {**of_tool, "gen_ai.tool.call.arguments": "3"}
    assert described(read(attributes=texts(with_arguments), events=events))[2] == "3", "an attribute has precedence"
    chat = read(attributes=texts({"gen_ai.operation.name": "chat"}), events=events)
    assert "gen_ai.tool.call.result" not in chat.attributes


def test_numbers_that_json_lacks_keep_their_value() -> None:
    values = {name: {"doubleValue": name.replace("minus", "-")} for name in ("NaN", "Infinity", "minusInfinity")}
    both = {"arrayValue": {"values": [{"doubleValue": "NaN"}, {"doubleValue": 1.5}]}}
    span = read(attributes=pairs(**values, both=both))
    stored = {name: to_text(value) for name, value in span.attributes.items() if "." not in name}
    named = {"NaN": "NaN", "Infinity": "Infinity", "minusInfinity": "-Infinity", "both": '["NaN",1.5]'}
    assert stored == named


def test_a_parent_of_zeros_is_no_parent() -> None:
    assert read(parentSpanId="0" * 16).parent_span_id == "root"
    logs = ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=[LogRecord(span_id=bytes(8))])])]
    )
    (span,) = otlp.parse_request("logs", logs.SerializeToString(), PROTOBUF, "t.0", "root")
    assert span.parent_span_id == "root"


def test_a_request_of_another_signal_is_refused_with_its_address() -> None:
    records = [LogRecord(**{name: 5}, body=AnyValue(string_value="x")) for name in TIMES]
    logs = [
        ExportLogsServiceRequest(resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=[record])])])
        for record in records
    ]
    as_json = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "x"}}]}]}]}).encode()
    for body, kind in (*((each.SerializeToString(), PROTOBUF) for each in logs), (as_json, JSON)):
        with pytest.raises(InvalidOtlpError, match="the request holds logs: send it to /v1/logs"):
            otlp.parse_request("traces", body, kind, "t.0", "root")
    with pytest.raises(InvalidOtlpError):
        otlp.parse_request("logs", telemetry().SerializeToString(), PROTOBUF, "t.0", "root")
    with pytest.raises(InvalidOtlpError, match="the request holds traces: send it to /v1/traces"):
        otlp.parse_request("logs", b'{"resourceSpans": [{}]}', JSON, "t.0", "root")
    assert otlp.parse_request("traces", ExportTraceServiceRequest().SerializeToString(), PROTOBUF, "t.0", "root") == []
