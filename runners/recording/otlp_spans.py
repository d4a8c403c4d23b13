"""OTLP's spans and log records as spans of a rollout. Pure."""

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from lightningbus.runners.recording.otlp_ids import check_id, read_parent
from lightningbus.runners.recording.otlp_json import UNKNOWN, wrong_signal
from lightningbus.runners.recording.otlp_limits import MAX_SHARED_BYTES, ConversionBudget, InvalidOtlpError, check_count
from lightningbus.runners.recording.refusals import InvalidSpanError, Refusals
from lightningbus.schemas import ids
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.event_payloads import attributes_of_events
from lightningbus.schemas.spans import Span

ORIGINAL_TRACE = "lightningbus.otlp.trace_id"

OtlpSpanKind = Literal["internal", "server", "client", "producer", "consumer"]
Status = Literal["unset", "ok", "error"]
KINDS: dict[int, OtlpSpanKind] = {2: "server", 3: "client", 4: "producer", 5: "consumer"}
TIME_FIELDS = frozenset({1, 11})
"""Numbers of a log record's times; spans and records hold there what the other cannot read."""
STATUS: dict[int, Status] = {1: "ok", 2: "error"}

ResourceGroup = tuple[Resource, Sequence[tuple[InstrumentationScope, Sequence[Any]]]]
"""A resource, and by scope its spans or log records."""


@dataclass(frozen=True, slots=True)
class _ScopeContext:
    """Common parts of the spans, or log records, of one scope."""

    trace_id: str
    root_span_id: str
    scope: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    moved: Collection[bytes]
    """The traces that become the rollout's."""


def convert_spans(
    request: ExportTraceServiceRequest, trace_id: str, root_span_id: str, refusals: Refusals
) -> list[Span]:
    """Convert spans to a rollout's; an invalid one is refused. Raise `InvalidOtlpError` for too much in one request."""
    groups: list[ResourceGroup] = [
        (group.resource, [(scope.scope, scope.spans) for scope in group.scope_spans if scope.spans])
        for group in request.resource_spans
    ]
    _check(groups)
    moved = {span.trace_id for _, scopes in groups for _, spans in scopes for span in spans}
    budget = ConversionBudget()
    return _convert(_span, _each(groups, trace_id, root_span_id, moved, budget), budget, refusals)


def convert_logs(request: ExportLogsServiceRequest, trace_id: str, root_span_id: str, refusals: Refusals) -> list[Span]:
    """Convert log records as `convert_spans` does spans."""
    groups: list[ResourceGroup] = [
        (group.resource, [(scope.scope, scope.log_records) for scope in group.scope_logs if scope.log_records])
        for group in request.resource_logs
    ]
    _check(groups)
    budget = ConversionBudget()
    return _convert(_log, _each(groups, trace_id, root_span_id, (), budget), budget, refusals)


def _convert(
    convert: Callable[[Any, _ScopeContext, ConversionBudget], Span],
    records: Iterable[tuple[Any, _ScopeContext]],
    budget: ConversionBudget,
    refusals: Refusals,
) -> list[Span]:
    converted = []
    for record, shared in records:
        try:
            converted.append(convert(record, shared, budget))
        except InvalidSpanError as error:
            refusals.add(error.refusal)
    return converted


def _check(groups: Iterable[ResourceGroup]) -> None:
    """Check counts and sizes before anything is converted."""
    spans = shared = 0
    checked: list[Sequence[Any]] = []
    for resource, scopes in groups:
        size = resource.ByteSize() if scopes else 0
        for scope, records in scopes:
            spans += len(records)
            checked.append(records)
            shared += len(records) * (size + scope.ByteSize())
    check_count(spans)
    for records in checked:
        _check_signal(records)
    if shared > MAX_SHARED_BYTES:
        raise InvalidOtlpError(
            f"resource and scope, counted for each span, have {shared} bytes; the limit is {MAX_SHARED_BYTES}"
        )


def _check_signal(records: Sequence[Any]) -> None:
    """Raise `InvalidOtlpError` for records of the other signal: their times and ids have other types."""
    for record in records:
        if any(field.field_number in TIME_FIELDS for field in UnknownFieldSet(record)):
            raise wrong_signal("traces" if isinstance(record, LogRecord) else "logs")


def _each(
    groups: Iterable[ResourceGroup],
    trace_id: str,
    root_span_id: str,
    moved: Collection[bytes],
    budget: ConversionBudget,
) -> Iterator[tuple[Any, _ScopeContext]]:
    """Yield every span or log record with its shared context; each resource and scope is converted once."""
    for resource, scopes in groups:
        if not scopes:
            continue
        common = _attributes(resource.attributes, budget)
        for scope, records in scopes:
            scope_attributes = _attributes(scope.attributes, budget)
            if scope.version:
                scope_attributes["otel.scope.version"] = scope.version
            shared = _ScopeContext(trace_id, root_span_id, scope.name, scope_attributes, common, moved)
            for record in records:
                yield record, shared


def _span(span: trace_pb2.Span, shared: _ScopeContext, budget: ConversionBudget) -> Span:
    span_attributes = _attributes(span.attributes, budget)
    span_attributes.update(shared.attributes)
    span_attributes[ORIGINAL_TRACE] = span.trace_id.hex()
    if span.trace_state:
        span_attributes["otel.trace_state"] = span.trace_state
    if span.dropped_attributes_count:
        span_attributes["otel.dropped_attributes_count"] = span.dropped_attributes_count
    for field in UnknownFieldSet(span):
        budget.spend()
        span_attributes[f"{UNKNOWN}{field.field_number}"] = _to_json_value(field.data)
    budget.spend(len(span.events) + len(span.links))
    events = tuple(
        {"name": e.name, "time_ns": e.time_unix_nano, "attributes": _attributes(e.attributes, budget)}
        for e in span.events
    )
    span_attributes = attributes_of_events(span_attributes, events) | span_attributes
    parent = read_parent(span.parent_span_id)
    for name, value in (("traceId", span.trace_id), ("spanId", span.span_id), ("parentSpanId", bytes.fromhex(parent))):
        check_id(name, value)
    if not span.span_id:
        raise InvalidSpanError("id", "it has no spanId")
    return Span(
        trace_id=shared.trace_id,
        span_id=span.span_id.hex(),
        parent_span_id=parent or shared.root_span_id,
        name=span.name,
        kind=KINDS.get(span.kind, "internal"),
        start_ns=span.start_time_unix_nano,
        end_ns=max(span.end_time_unix_nano, span.start_time_unix_nano),
        status=STATUS.get(span.status.code, "unset"),
        status_message=span.status.message,
        scope=shared.scope,
        attributes=span_attributes,
        resource=shared.resource,
        events=events,
        links=tuple(_link(link, shared, budget) for link in span.links),
    )


def _link(link: trace_pb2.Span.Link, shared: _ScopeContext, budget: ConversionBudget) -> dict[str, Any]:
    """Convert a link: one to an agent's span moves to the rollout's trace with that span, any other stays."""
    link_attributes = _attributes(link.attributes, budget)
    is_remote = bool(link.flags & trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
    if is_remote and link.trace_id not in shared.moved:
        return {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), "attributes": link_attributes}
    link_attributes[ORIGINAL_TRACE] = link.trace_id.hex()
    return {"trace_id": shared.trace_id, "span_id": link.span_id.hex(), "attributes": link_attributes}


def _log(record: LogRecord, shared: _ScopeContext, budget: ConversionBudget) -> Span:
    when = record.time_unix_nano or record.observed_time_unix_nano
    log_attributes = {
        **_attributes(record.attributes, budget),
        **shared.attributes,
        "log.severity": record.severity_text,
    }
    log_attributes[attributes.LOG_BODY] = _value(record.body, budget)
    parent = read_parent(record.span_id)
    check_id("spanId", bytes.fromhex(parent))
    # A record has no id of its own: its content names it, so that an exporter may send it twice.
    name = base64.b64encode(record.SerializeToString(deterministic=True)).decode()
    return Span(
        trace_id=shared.trace_id,
        span_id=ids.span_id(shared.trace_id, "log", name),
        parent_span_id=parent or shared.root_span_id,
        name=record.event_name or "log",
        start_ns=when,
        end_ns=when,
        scope=shared.scope,
        attributes=log_attributes,
        resource=shared.resource,
    )


def _attributes(pairs: Sequence[KeyValue], budget: ConversionBudget) -> dict[str, Any]:
    budget.spend(len(pairs))
    return {pair.key: _value(pair.value, budget) for pair in pairs}


def _value(value: AnyValue, budget: ConversionBudget) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        budget.spend(len(value.array_value.values))
        return [_value(element, budget) for element in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values, budget)
    return _to_json_value(getattr(value, kind))


def _to_json_value(value: Any) -> Any:
    """Encode bytes as base64, as OTLP's JSON does."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
