"""Telemetry an agent's own instrumentation sends (OTLP over HTTP, protobuf or JSON), made part of its rollout's trace.

Spans keep their ids and their shape; only the trace id becomes the rollout's, and a span without a parent hangs below
the attempt's root span. The original trace id stays in `ORIGINAL_TRACE`, and what this version of the protocol does not
know in attributes that begin with `UNKNOWN`. A log record is a span that takes no time: GenAI events come as such.
What a receiver answers: https://opentelemetry.io/docs/specs/otlp/#otlphttp-response.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc.status_pb2 import Status as RpcStatus
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from schemas import attributes, identity
from schemas.events import Span

ORIGINAL_TRACE = "lightningbus.otlp.trace_id"
UNKNOWN = "lightningbus.otlp.unknown."
MAX_SPANS = 10_000
"""In one request."""
JSON = "application/json"
IDS = frozenset({"traceId", "spanId", "parentSpanId"})

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Status = Literal["unset", "ok", "error"]
KINDS: dict[int, Kind] = {2: "server", 3: "client", 4: "producer", 5: "consumer"}
STATUS: dict[int, Status] = {1: "ok", 2: "error"}
UNREADABLE = (
    DecodeError, json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError, OverflowError,
    SystemError,  # protobuf's own, for a key with half a character in it
)  # fmt: skip


class BadTelemetry(ValueError):
    """Not an OTLP request; the message says why."""


def read(signal: str, body: bytes, content_type: str, rollout: str, root_span_id: str) -> list[Span]:
    """The spans of one export request, as spans of a rollout; raises `BadTelemetry`. Of metrics nothing is kept."""
    trace = identity.trace_id(rollout)
    if signal == "traces":
        found = list(_spans(_parsed(ExportTraceServiceRequest(), body, content_type), trace, root_span_id))
    elif signal == "logs":
        found = list(_logs(_parsed(ExportLogsServiceRequest(), body, content_type), trace, root_span_id))
    elif signal == "metrics":
        found = []
    else:
        raise BadTelemetry(f"OTLP has no signal {signal!r}")
    if len(found) > MAX_SPANS:
        raise BadTelemetry(f"{len(found)} spans in one request; the limit is {MAX_SPANS}")
    return found


def accepted(signal: str, content_type: str, refused: int) -> web.Response:
    """200; where something was not kept, how much and why."""
    message: Any
    if signal == "metrics":
        message = ExportMetricsServiceResponse()
        message.partial_success.error_message = "metrics are not kept here: traces and logs are"
    elif signal == "logs":
        message = ExportLogsServiceResponse()
        if refused:
            message.partial_success.rejected_log_records = refused
    else:
        message = ExportTraceServiceResponse()
        if refused:
            message.partial_success.rejected_spans = refused
    if refused:
        message.partial_success.error_message = "the attempt has no room for more spans"
    return _response(200, content_type, message)


def answer(status: int, content_type: str, message: str, retry_after: int | None = None) -> web.Response:
    """An error as OTLP says it; ``retry_after`` seconds the exporter may send the same again."""
    response = _response(status, content_type, RpcStatus(message=message))
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


def _response(status: int, content_type: str, message: Message) -> web.Response:
    if content_type == JSON:
        return web.json_response(json_format.MessageToDict(message), status=status)
    return web.Response(status=status, body=message.SerializeToString(), content_type="application/x-protobuf")


def _parsed(request: Any, body: bytes, content_type: str) -> Any:
    try:
        if content_type == JSON:
            json_format.ParseDict(_as_protobuf_has_it(json.loads(body)), request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except UNREADABLE as error:
        raise BadTelemetry(f"not an OTLP request: {error}") from error
    return request


def _as_protobuf_has_it(value: Any) -> Any:
    """OTLP's JSON writes ids as hex, protobuf's JSON expects base64; and it drops what it does not know."""
    if isinstance(value, list):
        return [_as_protobuf_has_it(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {
        key: base64.b64encode(bytes.fromhex(one)).decode() if key in IDS else _as_protobuf_has_it(one)
        for key, one in value.items()
    }
    if "spanId" in value and "startTimeUnixNano" in value:
        more = [key for key in value if key not in trace_pb2.Span.DESCRIPTOR.fields_by_camelcase_name]
        said = [{"key": UNKNOWN + key, "value": {"stringValue": json.dumps(made.pop(key))}} for key in more]
        made["attributes"] = [*made.get("attributes", ()), *said]
    return made


@dataclass(frozen=True, slots=True)
class _Shared:
    """What spans, or log records, of one scope have in common."""

    trace_id: str
    root_span_id: str
    scope: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


def _shared(trace_id: str, root_span_id: str, scope: InstrumentationScope, resource: Resource) -> _Shared:
    said = _attributes(scope.attributes)
    if scope.version:
        said["otel.scope.version"] = scope.version
    return _Shared(trace_id, root_span_id, scope.name, said, _attributes(resource.attributes))


def _spans(request: ExportTraceServiceRequest, trace_id: str, root_span_id: str) -> Iterator[Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            shared = _shared(trace_id, root_span_id, scope.scope, resource.resource)
            for span in scope.spans:
                yield _span(span, shared)


def _span(span: trace_pb2.Span, shared: _Shared) -> Span:
    said = _attributes(span.attributes)
    said.update(shared.attributes)
    said[ORIGINAL_TRACE] = span.trace_id.hex()
    if span.trace_state:
        said["otel.trace_state"] = span.trace_state
    if span.dropped_attributes_count:
        said["otel.dropped_attributes_count"] = span.dropped_attributes_count
    for field in UnknownFieldSet(span):
        said[f"{UNKNOWN}{field.field_number}"] = _plain(field.data)
    return Span(
        trace_id=shared.trace_id,
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex() or shared.root_span_id,
        name=span.name,
        kind=KINDS.get(span.kind, "internal"),
        start_ns=span.start_time_unix_nano,
        end_ns=max(span.end_time_unix_nano, span.start_time_unix_nano),
        status=STATUS.get(span.status.code, "unset"),
        status_message=span.status.message,
        scope=shared.scope,
        attributes=said,
        resource=shared.resource,
        events=tuple(
            {"name": e.name, "time_ns": e.time_unix_nano, "attributes": _attributes(e.attributes)} for e in span.events
        ),
        links=tuple(
            {"trace_id": e.trace_id.hex(), "span_id": e.span_id.hex(), "attributes": _attributes(e.attributes)}
            for e in span.links
        ),
    )


def _logs(request: ExportLogsServiceRequest, trace_id: str, root_span_id: str) -> Iterator[Span]:
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            shared = _shared(trace_id, root_span_id, scope.scope, resource.resource)
            for record in scope.log_records:
                yield _log(record, shared)


def _log(record: logs_pb2.LogRecord, shared: _Shared) -> Span:
    when = record.time_unix_nano or record.observed_time_unix_nano
    said = {**_attributes(record.attributes), **shared.attributes, "log.severity": record.severity_text}
    said[attributes.LOG_BODY] = _value(record.body)
    # A record has no id of its own: what it says names it, so that an exporter may send it twice.
    name = base64.b64encode(record.SerializeToString(deterministic=True)).decode()
    return Span(
        trace_id=shared.trace_id,
        span_id=identity.span_id(shared.trace_id, "log", name),
        parent_span_id=record.span_id.hex() or shared.root_span_id,
        name=record.event_name or "log",
        start_ns=when,
        end_ns=when,
        scope=shared.scope,
        attributes=said,
        resource=shared.resource,
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
    return _plain(getattr(value, kind))


def _plain(value: Any) -> Any:
    """Bytes as base64, as OTLP's JSON has them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
