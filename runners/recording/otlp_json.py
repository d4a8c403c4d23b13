"""OTLP's JSON as protobuf's JSON has it. Pure."""

import base64
import json
from typing import Any

from opentelemetry.proto.trace.v1 import trace_pb2

from runners.recording.otlp_limits import Budget

UNKNOWN = "lightningbus.otlp.unknown."
IDS = frozenset({"traceId", "spanId", "parentSpanId"})


def normalize_json(value: Any, budget: Budget) -> Any:
    """Ids, which OTLP writes as hex, as base64; unknown fields of a span, which protobuf would drop, as attributes.

    Raises `InvalidOtlp` for too many objects and lists, and what `json` and `bytes.fromhex` raise for wrong ones.
    """
    if not isinstance(value, dict | list):
        return value
    budget.spend()
    if isinstance(value, list):
        return [normalize_json(element, budget) for element in value]
    unknown = _unknown(value)
    budget.spend(len(unknown))
    converted = {
        key: base64.b64encode(bytes.fromhex(field)).decode() if key in IDS else normalize_json(field, budget)
        for key, field in value.items()
        if key not in unknown
    }
    if unknown:  # as they came: converted they would be written as JSON within JSON, twice as long at each level
        kept = [{"key": UNKNOWN + key, "value": {"stringValue": json.dumps(field)}} for key, field in unknown.items()]
        converted["attributes"] = [*converted.get("attributes", ()), *kept]
    return converted


def _unknown(value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a span that this version of the protocol does not have; none of anything else."""
    if "spanId" not in value or "startTimeUnixNano" not in value:
        return {}
    known = trace_pb2.Span.DESCRIPTOR.fields_by_camelcase_name
    return {key: field for key, field in value.items() if key not in known}
