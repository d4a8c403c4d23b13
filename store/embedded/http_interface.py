"""ClickHouse's HTTP interface in front of the embedded engine, so that every stock client works from any process.

What a client may send: https://clickhouse.com/docs/interfaces/http. One statement per request, in the body or in
``?query=``; ``param_x``, ``database`` and settings in the URL or a form; compressed bodies; a FORMAT clause.
The user `readonly_guard.WRITER` with its key may do everything. Everybody else may read, except pages of other sites.
"""

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from aiohttp import BasicAuth, web

from lightningbus.bus.security.secrets import constant_time_equal
from lightningbus.common.listeners import local_url_of, open_listener, serve_without_password
from lightningbus.store.embedded import origin_check, request_body
from lightningbus.store.embedded.engine import EmbeddedClickHouse, EmbeddedEngineError, QueryResult, Statement
from lightningbus.store.embedded.readonly_guard import WRITER

log = logging.getLogger(__name__)

MAX_WRITER_BYTES = 256 * 1024 * 1024
MAX_READER_BYTES = 4 * 1024 * 1024
"""Longest body, before and after decompression."""
MAX_CONCURRENT_READERS = 32
"""Concurrent requests of readers; more get status 503."""
OPEN_STORE = (
    "whoever does can read every run; listen on 127.0.0.1, or let the store write to a ClickHouse server with users "
    "(--url)"
)
THREADS = 4
PROTOCOL_PARAMS = frozenset(
    {
        "query", "database", "default_format", "user", "password", "compress", "decompress", "session_id",
        "session_timeout", "session_check", "query_id", "quota_key", "buffer_size", "wait_end_of_query", "role",
        "client_protocol_version", "send_progress_in_http_headers", "http_headers_progress_interval_ms",
        "enable_http_compression", "cancel_http_readonly_queries_on_client_close",
    }
)  # fmt: skip
"""Parameters of the protocol, which are no settings of the engine."""
FORMAT_NAME = re.compile(rb"(?i)\bFORMAT\s+(\w+)")
FORMAT_CLAUSE = re.compile(rb"(?i)\bFORMAT\s+(\w+)\s*;?\s*$")
STATEMENTS_WITHOUT_RESULT = re.compile(
    rb"(?i)\s*(INSERT|CREATE|DROP|ALTER|TRUNCATE|RENAME|OPTIMIZE|SET|USE|ATTACH|DETACH|SYSTEM)\b"
)

HTTP_STATUS = {60: 404, 81: 404, 62: 400, 47: 400, 46: 400, 51: 400, 456: 400, 48: 501, 164: 403, 516: 403}
"""HTTP status by ClickHouse's error code; other errors are 500."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpInterface:
    """Serves an engine on one address; an async context manager. ``allowed_hosts``: further host names it accepts."""

    def __init__(
        self, engine: EmbeddedClickHouse, host: str, port: int, key: str, allowed_hosts: Collection[str] = ()
    ) -> None:
        self._engine, self._host, self._port, self._key = engine, host, port, key
        self._allowed_hosts = allowed_hosts
        self._threads = ThreadPoolExecutor(THREADS, "clickhouse")
        self._num_readers = 0
        self._app = app = web.Application(client_max_size=MAX_READER_BYTES, middlewares=[self._check_origin])
        app.router.add_get("/ping", self._ping)
        app.router.add_get("/", self._query)
        app.router.add_post("/", self._query)
        self._exits = AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> "HttpInterface":
        listener = open_listener(self._host, self._port, "http_port")
        await self._exits.enter_async_context(
            serve_without_password(
                self._app, self._host, listener, "SQL", OPEN_STORE, shutdown_seconds=5, auto_decompress=False
            )
        )
        self.url = local_url_of(self._host, listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()
        await asyncio.to_thread(self._threads.shutdown)

    @web.middleware
    async def _check_origin(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not origin_check.is_allowed_host(request.host, self._host, self._allowed_hosts):
                reason = f"{request.host} is not a name of this store (its setting `allowed_hosts` has more)"
                return web.Response(status=421, text=f"Code: 516. DB::Exception: {reason}. (AUTHENTICATION_FAILED)\n")
            is_foreign = origin_check.is_cross_site(request.headers)
        except ValueError:  # an invalid host or origin
            is_foreign = True
        if is_foreign:
            reason = "a page of another site asks nothing here"
            return web.Response(status=403, text=f"Code: 516. DB::Exception: {reason}. (AUTHENTICATION_FAILED)\n")
        return await handler(request)

    async def _ping(self, request: web.Request) -> web.Response:
        return web.Response(text="Ok.\n")

    async def _query(self, request: web.Request) -> web.Response:
        if request.method in ("GET", "HEAD") and "query" not in request.query:
            return web.Response(text="Ok.\n")
        try:
            if self._is_writer(request):  # before anything of the body is read
                return await self._run_statement(request, MAX_WRITER_BYTES, self._engine.execute)
        except EmbeddedEngineError as error:
            return _error_response(error)
        if self._num_readers >= MAX_CONCURRENT_READERS:
            reason = f"{MAX_CONCURRENT_READERS} questions are being answered; ask again"
            text = f"Code: 202. DB::Exception: {reason}. (TOO_MANY_SIMULTANEOUS_QUERIES)\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "1"})
        self._num_readers += 1
        try:
            return await self._run_statement(request, MAX_READER_BYTES, self._engine.query_readonly)
        finally:
            self._num_readers -= 1

    async def _run_statement(
        self, request: web.Request, max_bytes: int, execute: Callable[[Statement], QueryResult]
    ) -> web.Response:
        try:
            statement = await parse_statement(request, max_bytes)
            if not statement.sql.strip():
                raise ValueError("Empty query")
        except (request_body.BodyTooLargeError, web.HTTPRequestEntityTooLarge):
            reason = f"a body of more than {max_bytes} bytes is refused"
            return web.Response(status=413, text=f"Code: 307. DB::Exception: {reason}. (TOO_MANY_BYTES)\n")
        except (ValueError, OSError, RuntimeError, web.RequestPayloadError) as error:  # a body no decoder reads
            return web.Response(status=400, text=f"Code: 62. DB::Exception: {error}. (SYNTAX_ERROR)\n")
        try:
            _check_protocol(request.query.get("client_protocol_version", ""), statement)
            result = await asyncio.get_running_loop().run_in_executor(self._threads, execute, statement)
        except EmbeddedEngineError as error:
            return _error_response(error)
        return web.Response(body=result.body, headers=_response_headers(statement, result))

    def _is_writer(self, request: web.Request) -> bool:
        """Return whether the user is the writer; raise `EmbeddedEngineError` for a writer with another key."""
        user, key = _credentials(request)
        if user == WRITER and not constant_time_equal(self._key, key):
            raise EmbeddedEngineError(
                f"Code: 516. DB::Exception: {WRITER}: this is not its key. (AUTHENTICATION_FAILED)"
            )
        return user == WRITER


def _error_response(error: EmbeddedEngineError) -> web.Response:
    headers = {"X-ClickHouse-Exception-Code": str(error.code)}
    return web.Response(status=HTTP_STATUS.get(error.code, 500), text=f"{error}\n", headers=headers)


def _credentials(request: web.Request) -> tuple[str, str]:
    """Read user and password, in all the forms that ClickHouse accepts."""
    if "Authorization" in request.headers:
        try:
            login = BasicAuth.decode(request.headers["Authorization"])
        except ValueError:
            return "", ""
        return login.login, login.password
    user, key = (request.headers.get(f"X-ClickHouse-{name}", "") for name in ("User", "Key"))
    return user or request.query.get("user", ""), key or request.query.get("password", "")


async def parse_statement(request: web.Request, max_bytes: int) -> Statement:
    """Parse the statement of a request, with a body of at most ``max_bytes``.

    Raises ValueError, OSError, RuntimeError or `web.RequestPayloadError` if the body cannot be read,
    `request_body.BodyTooLargeError` or `web.HTTPRequestEntityTooLarge` if it is too long.
    """
    fields = {name: str(value) for name, value in request.query.items()}
    content = b""
    if request.content_type == "multipart/form-data":
        fields |= {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
    elif request.can_read_body:
        content = await request_body.read_body(request, max_bytes)
    sql = fields.get("query", "").encode()
    parameters = {name[6:]: value for name, value in fields.items() if name.startswith("param_")}
    settings = {n: v for n, v in fields.items() if n not in PROTOCOL_PARAMS and not n.startswith("param_")}
    return Statement(
        sql=sql or content,
        data=content if sql else b"",
        format=fields.get("default_format") or request.headers.get("X-ClickHouse-Format") or "TabSeparated",
        database=fields.get("database") or request.headers.get("X-ClickHouse-Database") or "",
        parameters=parameters,
        settings=settings,
    )


def _check_protocol(version: str, statement: Statement) -> None:
    """Raise `EmbeddedEngineError` for Native of a protocol version: the engine writes and reads that of version 0."""
    if version in ("", "0"):
        return
    names = FORMAT_NAME.findall(statement.sql)
    if not names and not STATEMENTS_WITHOUT_RESULT.match(statement.sql):
        names = [statement.format.encode()]
    if any(name.lower() == b"native" for name in names):
        raise EmbeddedEngineError(
            "Code: 48. DB::Exception: the embedded engine has the format Native without client_protocol_version alone: "
            "leave it out, ask for another format, or let the store write to a ClickHouse server (--url). "
            "(NOT_IMPLEMENTED)"
        )


def _response_headers(statement: Statement, result: QueryResult) -> dict[str, str]:
    written = {"written_rows": str(result.written_rows), "written_bytes": str(result.written_bytes)}
    summary = {
        "read_rows": "0",
        "read_bytes": "0",
        **written,
        "result_rows": "0",
        "result_bytes": str(len(result.body)),
    }
    headers = {
        "X-ClickHouse-Summary": json.dumps(summary),
        "X-ClickHouse-Query-Id": str(uuid.uuid4()),
        "X-ClickHouse-Server-Display-Name": "lightningbus",
        "X-ClickHouse-Timezone": "UTC",
    }
    if not STATEMENTS_WITHOUT_RESULT.match(statement.sql):
        match = FORMAT_CLAUSE.search(statement.sql)
        headers["X-ClickHouse-Format"] = match[1].decode() if match else statement.format
    return headers
