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

from runners.recording.otlp_json import normalize_json
from runners.recording.otlp_limits import Budget, InvalidOtlp
from runners.recording.otlp_spans import convert_logs, convert_spans
from schemas import ids
from schemas.spans import Span

SIGNALS = frozenset({"traces", "logs", "metrics"})
JSON = "application/json"
UNREADABLE = (
    DecodeError, json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError, OverflowError,
    SystemError,  # protobuf's own, for a key with half a character in it
)  # fmt: skip


def parse_request(signal: str, body: bytes, content_type: str, rollout: str, root_span_id: str) -> list[Span]:
    """The spans of one export request, as spans of a rollout; raises `InvalidOtlp`. Of metrics nothing is kept.

    ``signal`` is one of `SIGNALS`. Takes up to seconds for a large hostile body: not for the event loop's thread.
    """
    trace = ids.trace_id(rollout)
    if signal == "traces":
        return convert_spans(_parsed(ExportTraceServiceRequest(), body, content_type), trace, root_span_id)
    if signal == "logs":
        return convert_logs(_parsed(ExportLogsServiceRequest(), body, content_type), trace, root_span_id)
    return []


def success_response(signal: str, content_type: str, refused: int) -> web.Response:
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


def error_response(status: int, content_type: str, message: str, retry_after: int | None = None) -> web.Response:
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
            json_format.ParseDict(normalize_json(json.loads(body), Budget()), request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except InvalidOtlp:
        raise
    except UNREADABLE as error:
        raise InvalidOtlp(f"not an OTLP request: {error}") from error
    return request
