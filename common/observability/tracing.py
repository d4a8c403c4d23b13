"""A role's own traces: OpenTelemetry's API always, its SDK and OTLP/HTTP exporter where ``OTEL_*`` names a collector.

A span holds names and numbers, never prompts, answers or settings. These traces are for operators; a rollout's own
trace is in the store either way.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, NoOpTracer, Span, SpanKind, StatusCode, Tracer, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lightningbus.common.loopback_proxies import bypass_loopback
from lightningbus.common.missing_modules import describe_missing_module

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
FLUSH_SECONDS = 3.0
"""Longest a role waits, as it ends, for its last spans to be exported."""
AGENT_PREFIXES = ("OTEL_INSTRUMENTATION_", "OTEL_PYTHON_", "OTEL_SEMCONV_")
"""Prefixes of variables about instrumentation, as opposed to export."""

Kind = Literal["internal", "server", "client", "consumer"]
Attributes = Mapping[str, str | int | float | bool]
"""Attributes of a span."""
NO_SPAN: AbstractContextManager[Span] = nullcontext(INVALID_SPAN)
"""Span of every block while traces are not exported."""


TRACE_CONTEXT = TraceContextTextMapPropagator()
_provider: "TracerProvider | None" = None
_tracer: Tracer = NoOpTracer()


def setup(role: str, instance: str) -> None:
    """Export the spans of this process if the environment names a collector. Problems are logged."""
    global _provider, _tracer
    endpoint = next(filter(None, (os.environ.get(name) for name in ENDPOINTS)), "")
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not endpoint or off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return
    if (spoken := next(filter(None, (os.environ.get(name) for name in PROTOCOLS)), PROTOCOL)) != PROTOCOL:
        log.warning("no traces are exported by %s: set OTEL_EXPORTER_OTLP_PROTOCOL=%s", spoken, PROTOCOL)
        return
    try:
        os.environ.update(bypass_loopback(os.environ))  # The exporter asks proxies of the environment.
        _provider = _create_provider(role, instance)
    except ModuleNotFoundError as error:
        log.warning("no traces are exported: %s", describe_missing_module(error.name, "otel"))
        return
    except Exception as error:  # a library rejects the environment: no role ends for that
        log.warning("no traces are exported: what OTEL_* says is refused: %s", type(error).__name__)
        return
    _tracer = _provider.get_tracer("lightningbus")


def shutdown() -> None:
    """Export the remaining spans, for at most `FLUSH_SECONDS`, and stop exporting."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, NoOpTracer()
    if provider is not None:  # the SDK would wait for a collector that does not answer
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


def start_span(
    name: str, attributes: Attributes | None = None, parent: str = "", kind: Kind = "internal", started_ns: int = 0
) -> AbstractContextManager[Span]:
    """Trace the block as a child of the current span or of a W3C traceparent."""
    return NO_SPAN if _provider is None else _start_span(name, attributes, parent, kind, started_ns)


@contextmanager
def _start_span(name: str, attributes: Attributes | None, parent: str, kind: Kind, started_ns: int) -> Iterator[Span]:
    span = _tracer.start_span(name, _context(parent), SpanKind[kind.upper()], attributes, start_time=started_ns or None)
    try:
        yield span
    except GeneratorExit:  # the reader has stopped early
        raise
    except BaseException as error:
        set_error(span, type(error).__name__)
        raise
    finally:
        span.end()


def start_as_current_span(
    name: str, attributes: Attributes | None = None, parent: str = "", kind: Kind = "internal", started_ns: int = 0
) -> AbstractContextManager[Span]:
    """Start a span as the current one of the block: inner spans are its children. Not for generators."""
    return NO_SPAN if _provider is None else _start_as_current_span(name, attributes, parent, kind, started_ns)


@contextmanager
def _start_as_current_span(
    name: str, attributes: Attributes | None, parent: str, kind: Kind, started_ns: int
) -> Iterator[Span]:
    with (
        _start_span(name, attributes, parent, kind, started_ns) as span,
        use_span(span, record_exception=False, set_status_on_exception=False),
    ):
        yield span


def record_span(name: str, started_ns: int, ended_ns: int) -> None:
    """Record a finished span, as a child of the current one."""
    _tracer.start_span(name, start_time=started_ns).end(max(started_ns, ended_ns))


def set_error(span: Span, kind: str) -> None:
    """Mark a span as failed. ``kind`` is a kind of failure, not its message."""
    span.set_status(StatusCode.ERROR, kind)


def format_headers(span: Span) -> dict[str, str]:
    """Build the W3C Trace Context of a span for another service; empty where traces are not exported."""
    if _provider is None or not (context := span.get_span_context()).is_valid:
        return {}
    return {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}


def format_traceparent(span: Span) -> str:
    """Return the ``traceparent`` of `format_headers`; empty where traces are not exported."""
    return format_headers(span).get("traceparent", "")


def without_otel_exporter_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove this process's own trace exporter and its keys from an environment."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("OTEL_") or name.startswith(AGENT_PREFIXES)
    }


def _context(traceparent: str) -> Context | None:
    return TRACE_CONTEXT.extract({"traceparent": traceparent}) if traceparent else None


def _create_provider(role: str, instance: str) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    service = {"service.namespace": "lightningbus", "service.instance.id": instance}
    resource = Resource.create(service | ({} if named else {"service.name": f"lightningbus-{role}"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_log_transitions(OTLPSpanExporter())))
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # repeats one message for every rejected batch
    return provider


def _log_transitions(exporter: Any) -> Any:
    """Wrap an exporter so that it logs when the collector is lost and when it is back."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class TransitionLoggingExporter(SpanExporter):
        lost = False

        def export(self, spans: Any) -> "SpanExportResult":
            try:
                result: SpanExportResult = exporter.export(spans)
            except Exception:  # any error of the library's own thread: work goes on
                result = SpanExportResult.FAILURE
            lost = result is not SpanExportResult.SUCCESS
            if lost and not self.lost:
                log.warning(
                    "no collector takes traces where OTEL_EXPORTER_OTLP_* says: they are dropped until one does"
                )
            elif self.lost and not lost:
                log.info("the collector takes traces again")
            self.lost = lost
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    return TransitionLoggingExporter()
