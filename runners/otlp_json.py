"""OTLP's JSON as protobuf's JSON has it. Pure."""

import base64
import json
from typing import Any

from opentelemetry.proto.trace.v1 import trace_pb2

from runners.otlp_limits import Budget

UNKNOWN = "lightningbus.otlp.unknown."
IDS = frozenset({"traceId", "spanId", "parentSpanId"})


def as_protobuf_has_it(value: Any, budget: Budget) -> Any:
    """Ids, which OTLP writes as hex, as base64; unknown fields of a span, which protobuf would drop, as attributes.

    Raises `BadTelemetry` for too many objects and lists, and what `json` and `bytes.fromhex` raise for wrong ones.
    """
    if not isinstance(value, dict | list):
        return value
    budget.spend()
    if isinstance(value, list):
        return [as_protobuf_has_it(element, budget) for element in value]
    converted = {
        key: base64.b64encode(bytes.fromhex(field)).decode() if key in IDS else as_protobuf_has_it(field, budget)
        for key, field in value.items()
    }
    if "spanId" in value and "startTimeUnixNano" in value:
        unknown = [key for key in value if key not in trace_pb2.Span.DESCRIPTOR.fields_by_camelcase_name]
        kept = [{"key": UNKNOWN + key, "value": {"stringValue": json.dumps(converted.pop(key))}} for key in unknown]
        converted["attributes"] = [*converted.get("attributes", ()), *kept]
    return converted
