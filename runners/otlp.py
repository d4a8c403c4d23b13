"""Spans an agent's own instrumentation sends (OTLP over HTTP, protobuf or JSON), made part of its rollout's trace.

They keep their ids and their shape; only the trace id becomes the rollout's, and a span without a parent hangs
below the attempt's root span. The original trace id stays in `ORIGINAL_TRACE`.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from schemas import identity
from schemas.events import Span

ORIGINAL_TRACE = "lightningbus.otlp.trace_id"
MAX_SPANS = 10_000

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Status = Literal["unset", "ok", "error"]
KINDS: dict[int, Kind] = {2: "server", 3: "client", 4: "producer", 5: "consumer"}
STATUS: dict[int, Status] = {1: "ok", 2: "error"}


class BadTelemetry(ValueError):
    """Not an OTLP trace request; the message says why."""


def read(body: bytes, content_type: str, rollout: str, root_span_id: str) -> list[Span]:
    """The spans of one export request, as spans of a rollout; raises `BadTelemetry`."""
    request = ExportTraceServiceRequest()
    try:
        if content_type == "application/json":
            json_format.ParseDict(_with_base64_ids(json.loads(body)), request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadTelemetry(f"not an OTLP trace request: {error}") from error
    spans = list(_spans(request, identity.trace_id(rollout), root_span_id))
    if len(spans) > MAX_SPANS:
        raise BadTelemetry(f"{len(spans)} spans in one request; the limit is {MAX_SPANS}")
    return spans


def _with_base64_ids(request: Any) -> Any:
    """OTLP's JSON writes ids as hex, protobuf's JSON expects base64: https://opentelemetry.io/docs/specs/otlp/."""
    for resource in request.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for holder in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in holder:
                            holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
    return request


def _spans(request: ExportTraceServiceRequest, trace_id: str, root_span_id: str) -> Iterator[Span]:
    for resource in request.resource_spans:
        about = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _span(span, scope.scope.name, about, trace_id, root_span_id)


def _span(span: trace_pb2.Span, scope: str, resource: dict[str, Any], trace_id: str, root_span_id: str) -> Span:
    return Span(
        trace_id=trace_id,
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex() or root_span_id,
        name=span.name,
        kind=KINDS.get(span.kind, "internal"),
        start_ns=span.start_time_unix_nano,
        end_ns=max(span.end_time_unix_nano, span.start_time_unix_nano),
        status=STATUS.get(span.status.code, "unset"),
        status_message=span.status.message,
        scope=scope,
        attributes={**_attributes(span.attributes), ORIGINAL_TRACE: span.trace_id.hex()},
        resource=resource,
        events=tuple(
            {"name": e.name, "time_ns": e.time_unix_nano, "attributes": _attributes(e.attributes)} for e in span.events
        ),
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return getattr(value, kind)
