"""Limits of both gateways before a request is read: a bounded number of connections, and short timeouts."""

import asyncio
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from lightningbus.common.observability.http_errors import quiet_http_logger

log = logging.getLogger(__name__)

HEADER_TIMEOUT_SECONDS = 10.0
"""Seconds after which a connection without the head of its first request is closed."""
LATE_SECONDS = 0.5
"""A timer that fires later than this shows that the process was stopped. Its clients may have sent heads meanwhile."""
BODY_TIMEOUT_SECONDS = 60.0
KEEPALIVE_TIMEOUT_SECONDS = 75.0
"""A connection that is kept for another request is closed after so long without one."""
LINGERING_CLOSE_SECONDS = 10.0
"""Seconds for which the rest of a rejected body is read: a client sees the answer only after it has sent everything."""
BACKLOG = 1024
SERVICE_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
)


async def read_body(request: web.Request) -> bytes:
    """Read and decompress a request's body; raise aiohttp's errors if it is too large, too slow, or malformed."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            return await request.read()
    except web.RequestPayloadError as error:
        encoding = request.headers.get("Content-Encoding")
        reason = (
            f"the body is not {encoding}, as its Content-Encoding says" if encoding else f"the body is broken: {error}"
        )
        raise web.HTTPBadRequest(text=reason) from error
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"a request's body comes within {BODY_TIMEOUT_SECONDS:g} s") from None


class HttpServer:
    """An application on one or more sockets. `middleware` must be one of the application's."""

    def __init__(self) -> None:
        self._awaiting_headers: set[asyncio.BaseProtocol] = set()
        """Connections that have not sent the head of a request yet."""
        self._max_connections = (
            resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        )  # the other half is for what we ask ourselves
        self._runner: web.AppRunner
        self._servers: list[asyncio.Server] = []

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that a request's head has arrived, then handle the request."""
        self._awaiting_headers.discard(request.protocol)
        return await handler(request)

    async def open(self, app: web.Application, *listeners: socket.socket, shutdown_seconds: float) -> None:
        """Answer requests; a client that disconnects cancels its handler, and with it the engine's work."""
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=shutdown_seconds,
            keepalive_timeout=KEEPALIVE_TIMEOUT_SECONDS,
            lingering_time=LINGERING_CLOSE_SECONDS,
            logger=quiet_http_logger(),
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        for listener in listeners:
            serve = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
            self._servers.append(await serve(self._accepted, sock=listener, backlog=BACKLOG))

    async def close(self) -> None:
        """Answer no new requests; finish open ones within the shutdown's time."""
        for server in self._servers:
            server.close()
        await self._runner.cleanup()

    def _accepted(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._max_connections:
            return _RejectProtocol()
        connection = server()
        self._awaiting_headers.add(connection)
        self._set_header_timeout(connection)
        return connection

    def _set_header_timeout(self, connection: web.RequestHandler) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + HEADER_TIMEOUT_SECONDS
        loop.call_at(due, self._on_header_timeout, connection, due)

    def _on_header_timeout(self, connection: web.RequestHandler, due: float) -> None:
        if connection not in self._awaiting_headers:
            return
        if asyncio.get_running_loop().time() - due > LATE_SECONDS:
            self._set_header_timeout(connection)
            return
        self._awaiting_headers.discard(connection)
        if connection.transport is not None:
            connection.transport.abort()


class _RejectProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        refusing = cast("asyncio.Transport", transport)
        refusing.write(SERVICE_UNAVAILABLE)
        refusing.close()
