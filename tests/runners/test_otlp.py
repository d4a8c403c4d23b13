"""OTLP bodies become spans of the rollout's trace."""

import json

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from lightningbus.runners.recording import otlp
from lightningbus.runners.recording.otlp_limits import InvalidOtlpError
from lightningbus.schemas import ids as identity


def telemetry() -> ExportTraceServiceRequest:
    inner = ProtoSpan(
        trace_id=b"\1" * 16,
        span_id=b"\2" * 8,
        name="tool",
        start_time_unix_nano=5,
        end_time_unix_nano=9,
        attributes=[KeyValue(key="lightningbus.reward", value=AnyValue(double_value=0.5))],
    )
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[inner])])])


def test_telemetry_in_protobuf_and_json_becomes_part_of_the_rollouts_trace() -> None:
    as_json = {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "01" * 16,
                                "spanId": "02" * 8,
                                "name": "tool",
                                "startTimeUnixNano": "5",
                                "endTimeUnixNano": "9",
                                "attributes": [{"key": "lightningbus.reward", "value": {"doubleValue": 0.5}}],
                                "somethingNew": 1,
                            }
                        ]
                    }
                ]
            }
        ]
    }
    from_protobuf = otlp.parse_request(
        "traces", telemetry().SerializeToString(), "application/x-protobuf", "t.0", "root"
    )
    assert otlp.parse_request("traces", json.dumps(as_json).encode(), "application/json", "t.0", "root") == [
        replace(item, attributes={**item.attributes, "lightningbus.otlp.unknown.somethingNew": "1"})
        for item in from_protobuf
    ]
    (actual,) = from_protobuf
    assert (actual.trace_id, actual.span_id, actual.parent_span_id) == (identity.trace_id("t.0"), "02" * 8, "root")
    assert actual.attributes["lightningbus.reward"] == 0.5


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"\xff\xff", "application/x-protobuf"), (b"[1]", "application/json"), (b"{", "application/json")],
)
def test_what_is_no_telemetry_is_refused_in_one_sentence(body: bytes, kind: str) -> None:
    with pytest.raises(InvalidOtlpError, match="not an OTLP request"):
        otlp.parse_request("traces", body, kind, "t.0", "root")
