"""A request of an agent's before it is answered: how much of it is read, and how it is refused."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from lightningbus.common.http_server import read_body
from lightningbus.runners.gateway.admission import InFlightRequest
from lightningbus.runners.protocol.dialects.anthropic_request import UnsupportedThreadError
from lightningbus.runners.protocol.dialects.registry import find_api
from lightningbus.runners.recording.otlp_limits import MAX_BYTES

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Largest decompressed body; telemetry and events have a lower limit."""
IN_FLIGHT_KEY = web.RequestKey("held", InFlightRequest)
"""Key of a request's entry in its slot's `Admission`."""
KEEPALIVE_KEY = web.RequestKey("kept", bool)
"""Key of a request's permission to keep its connection open."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """A request that is not answered: HTTP status, the error's name, a sentence; seconds until it may come again."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        retry_after: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.details = status, kind, details
        self.headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}


def limit(request: web.Request) -> int:
    """Return the largest decompressed body of a request, in bytes."""
    is_telemetry = "signal" in request.match_info or request.path.endswith(("/events", "/otlp"))
    return MAX_BYTES if is_telemetry else MAX_REQUEST_BYTES


def too_large(request: web.Request) -> str:
    """Word the error for a larger request."""
    return f"a request to {request.path} may have {limit(request)} bytes"


def max_bytes(request: web.Request) -> int:
    """Return the upper bound of a body that has not been read."""
    if not request.body_exists:
        return 0
    length = request.content_length
    packed = "Content-Encoding" in request.headers
    return limit(request) if length is None or packed else min(length, limit(request))


async def read_limited_body(request: web.Request) -> bytes:
    """Read and decompress a body; raise aiohttp's errors for an unreadable one."""
    try:
        body = await read_body(request.clone(client_max_size=limit(request)))
    except web.HTTPBadRequest:  # the rest of the connection may be its remainder
        request[KEEPALIVE_KEY] = False
        raise
    request[IN_FLIGHT_KEY].size = len(body)
    return body


async def close_unless_kept(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after the answer unless it may stay open: without a key, or with too many, it may not."""
    if not request.get(KEEPALIVE_KEY, False):
        response.force_close()
        response.headers["Connection"] = "close"


@contextmanager
def raise_on_malformed() -> Iterator[None]:
    """Turn errors while reading a request into answers that blame the client."""
    try:
        yield
    except UnsupportedThreadError as error:
        raise ApiError(400, "invalid_request_error", str(error), details=error.details) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_request_error", str(error)) from error
    except (TypeError, AttributeError, LookupError) as error:
        sentence = f"the request has not the form this API asks for: {type(error).__name__}: {error}"
        raise ApiError(400, "invalid_request_error", sentence) from error


@web.middleware
async def render_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors in the form of the API that the client speaks."""
    try:
        return await handler(request)
    except ApiError as away:
        body = find_api(request.path).error(away.status, away.kind, str(away))
        if away.details:
            body["error"]["details"] = away.details
        return web.json_response(body, status=away.status, headers=away.headers)
    except web.HTTPRequestTimeout as error:
        return web.json_response(find_api(request.path).error(408, "timeout", error.text or ""), status=408)
    except web.HTTPBadRequest as error:
        body = find_api(request.path).error(400, "invalid_request_error", error.text or "")
        return web.json_response(body, status=400)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        body = find_api(request.path).error(
            error.status, "unknown_url", f"{request.method} {request.path} is not served"
        )
        return web.json_response(body, status=error.status)
    except web.HTTPRequestEntityTooLarge:
        body = find_api(request.path).error(413, "request_too_large", too_large(request))
        return web.json_response(body, status=413)
