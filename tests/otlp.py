"""A collector: takes OTLP over HTTP as the protocol's own messages have it, and keeps every span."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """A span as it came."""

    service: str
    instance: str
    name: str
    trace_id: str
    span_id: str
    parent: str
    kind: int
    status: int
    seconds: float
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What has come so far; ``url`` is for OTEL_EXPORTER_OTLP_ENDPOINT."""

    url: str = ""
    spans: list[Seen] = field(default_factory=list)
    raw: bytes = b""
    paths: set[str] = field(default_factory=set)

    def of(self, service: str, name: str = "") -> list[Seen]:
        """Spans of a service whose names begin so."""
        return [span for span in list(self.spans) if span.service == service and span.name.startswith(name)]

    def take(self, path: str, body: bytes) -> None:
        """Read one request."""
        self.paths.add(path)
        self.raw += body
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {attribute.key: attribute.value.string_value for attribute in group.resource.attributes}
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Seen(
                            service=resource["service.name"],
                            instance=resource["service.instance.id"],
                            name=span.name,
                            trace_id=span.trace_id.hex(),
                            span_id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            kind=span.kind,
                            status=span.status.code,
                            seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                            attributes={attribute.key: _value(attribute.value) for attribute in span.attributes},
                        )
                    )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of loopback, in threads of its own."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
