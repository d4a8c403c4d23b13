"""Telemetry an agent's own instrumentation sends (OTLP over HTTP, protobuf or JSON), made part of its rollout's trace.

Spans keep their ids and their shape; only the trace id becomes the rollout's, also in links among them, and a span
without a parent hangs below the attempt's root span. The original trace id stays in `ORIGINAL_TRACE`, and what this
version of the protocol does not know in attributes that begin with `UNKNOWN`. A log record is a span that takes no
time: GenAI events come as such. What a receiver answers: https://opentelemetry.io/docs/specs/otlp/#otlphttp-response.
"""

import json
from typing import Any

from aiohttp import web
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status as RpcStatus
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightningbus.runners.recording.otlp_json import UNREADABLE, fill_request
from lightningbus.runners.recording.otlp_limits import InvalidOtlpError
from lightningbus.runners.recording.otlp_protobuf import parse_protobuf
from lightningbus.runners.recording.otlp_spans import convert_logs, convert_spans
from lightningbus.runners.recording.refusals import Refusals
from lightningbus.schemas import ids
from lightningbus.schemas.spans import Span

SIGNALS = frozenset({"traces", "logs", "metrics"})
JSON = "application/json"


def parse_request(
    signal: str, body: bytes, content_type: str, rollout: str, root_span_id: str, refusals: Refusals | None = None
) -> list[Span]:
    """Parse the spans of one export request, as spans of a rollout; raise `InvalidOtlpError`. Metrics are dropped.

    ``signal`` is one of `SIGNALS`. A span that cannot be kept is counted in ``refusals`` and affects no other.
    Takes up to seconds for a large hostile body: not for the event loop's thread.
    """
    trace, refusals = ids.trace_id(rollout), Refusals() if refusals is None else refusals
    if signal == "traces":
        traces = ExportTraceServiceRequest()
        _parse(traces, signal, body, content_type, refusals)
        return convert_spans(traces, trace, root_span_id, refusals)
    if signal == "logs":
        logs = ExportLogsServiceRequest()
        _parse(logs, signal, body, content_type, refusals)
        return convert_logs(logs, trace, root_span_id, refusals)
    return []


def success_response(signal: str, content_type: str, refusals: Refusals) -> web.Response:
    """Build the answer of status 200; it lists dropped items and reasons."""
    if signal == "metrics":
        metrics = ExportMetricsServiceResponse()
        metrics.partial_success.error_message = "metrics are not kept here: traces and logs are"
        return _response(200, content_type, metrics)
    message: Any = ExportLogsServiceResponse() if signal == "logs" else ExportTraceServiceResponse()
    if refusals.total:
        message.partial_success.error_message = refusals.describe()
        if signal == "logs":
            message.partial_success.rejected_log_records = refusals.total
        else:
            message.partial_success.rejected_spans = refusals.total
    return _response(200, content_type, message)


def error_response(status: int, content_type: str, message: str, retry_after: int | None = None) -> web.Response:
    """Build an error in OTLP's form; the exporter may send the same again after ``retry_after`` seconds."""
    response = _response(status, content_type, RpcStatus(message=message))
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


def _response(status: int, content_type: str, message: Message) -> web.Response:
    if content_type == JSON:
        return web.json_response(json_format.MessageToDict(message), status=status)
    return web.Response(status=status, body=message.SerializeToString(), content_type="application/x-protobuf")


def _parse(request: Message, signal: str, body: bytes, content_type: str, refusals: Refusals) -> None:
    try:
        if content_type == JSON:
            fill_request(request, signal, json.loads(body), refusals)
        else:
            parse_protobuf(request, body)
    except InvalidOtlpError:
        raise
    except (DecodeError, *UNREADABLE) as error:
        raise InvalidOtlpError(f"not an OTLP request: {error}") from error
