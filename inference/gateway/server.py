"""What runners reach: vLLM's model routes and nothing else, each chunk marked with the version that made its tokens.

vLLM 0.31 labels an engine with a version, not a token. After a pause has been answered no token is made until the
resume, so whatever has arrived by then is the old version and whatever comes later is the new one.
"""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
from aiohttp import web

from bus.fleet.node_state import State, serves
from bus.security.secrets import holds
from common.http_server import Listening, body_of
from common.observability import metrics, tracing
from common.observability.metric_registry import counted
from inference.gateway.version_stamp import StampEvent, add_cache_salt, stamp_event, stream
from inference.settings import MOST_REQUESTS
from inference.version_registry import LoadedVersions, select_version
from schemas.semconv import attributes
from schemas.subjects import TRACE_HEADER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024 * 1024
HEALTH = "/health"
"""The one route that asks for no key: it tells a load balancer the state and the version, and nothing else."""
RETRY_AFTER = {"Retry-After": "1"}
VERSION_HEADER = "X-Lightningbus-Version"
"""This version or none."""
PREFERRED_HEADER = "X-Lightningbus-Preferred-Version"
"""This version where it is held, else the newest."""


class Gateway:
    """Serves the node's public routes; `version` and `state` decide what it answers."""

    def __init__(
        self,
        engine_url: str,
        session: aiohttp.ClientSession,
        host: str,
        port: int,
        cluster_key: str = "",
        most: int = MOST_REQUESTS,
        residents: LoadedVersions | None = None,
    ) -> None:
        """``session`` reaches the engine at ``engine_url``. ``cluster_key``: what a request must bring, none if empty.

        ``most``: how many are answered at once; ``residents``: versions the engine holds beside one another.
        """
        self._engine_url = engine_url
        self._cluster_key, self._most, self._held = cluster_key, most, 0
        self._session = session
        self._host, self._port = host, port
        self._residents = residents or LoadedVersions("", 1)
        self.version: int | None = None
        """Of the weights themselves; None where there are none, or a base for adapters, which is no version."""
        self.state: State = "starting"
        self._open: dict[int, web.Request] = {}
        """What the engine is answering."""
        self._closed, self._ended = False, asyncio.Event()
        self.address = ""
        self._listening = Listening()
        counting = counted(metrics.node_requests, metrics.node_inflight)
        before = [self._listening.middleware, counting, self._admit]
        self._app = app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=before)
        app.router.add_post("/v1/chat/completions", self._forward)
        app.router.add_post("/v1/completions", self._forward)
        app.router.add_post("/tokenize", self._pass_on)
        app.router.add_get("/v1/models", self._pass_on)
        app.router.add_get("/metrics", self._pass_on)  # vLLM's own
        app.router.add_get(HEALTH, self._health)

    async def __aenter__(self) -> "Gateway":
        listener = socket.create_server((self._host, self._port))
        await self._listening.open(self._app, listener, shutdown_seconds=5)
        self.address = f"http://{self._host}:{listener.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listening.close()

    async def flush_pending_chunks(self) -> None:
        """Let every chunk that has reached this process be marked; call between pause and resume."""
        for _ in range(4):  # a turn of the loop each: socket read, stream fed, reader woken, chunk marked
            await asyncio.sleep(0)

    @property
    def num_in_flight(self) -> int:
        """How many requests the engine is answering."""
        return len(self._open)

    @property
    def versions(self) -> tuple[int, ...]:
        """Those a new call may go to, newest last."""
        return self._residents.routable or (() if self.version is None else (self.version,))

    @property
    def newest(self) -> int | None:
        """The one a new call goes to that names none; None: it is refused."""
        return select_version(self.versions, None, None)

    def engine_model_name(self, version: int) -> str:
        """What vLLM calls a version; empty for the weights themselves, which it calls as agents do."""
        return self._residents.name(version) if version in self._residents else ""

    @asynccontextmanager
    async def drained(self) -> AsyncIterator[None]:
        """A time without calls: new ones are turned away, to come again, and those in flight have ended."""
        self._closed = True
        try:
            await self._wait_idle()
            yield
        finally:
            self._closed = False

    async def abort_in_flight(self) -> None:
        """Break off every answer that is under way: who asked goes on at another node, from the tokens it has."""
        for request in self._open.values():
            if request.transport is not None:
                request.transport.abort()
        await self._wait_idle()

    async def _wait_idle(self) -> None:
        while self._open:
            await self._ended.wait()

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Before anything of a request but its headers is read."""
        if request.path == HEALTH:
            return await handler(request)
        if self._cluster_key and not holds(self._cluster_key, request.headers.get("Authorization", "")):
            return _error(401, "this node answers who holds the cluster key: set cluster_key_file")
        if self._held >= self._most:
            return _error(429, f"this node answers {self._most} requests at once", RETRY_AFTER)
        self._held += 1
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"a request may have {MAX_REQUEST_BYTES} bytes")
        except (web.HTTPRequestTimeout, web.HTTPBadRequest) as error:
            return _error(error.status, error.text or "")
        finally:
            self._held -= 1

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"state": self.state, "version": self.newest}, status=200 if serves(self.state) else 503
        )

    async def _pass_on(self, request: web.Request) -> web.Response:
        """The engine's own answer where no token is sampled, so none has a version."""
        if not serves(self.state):
            return self._not_ready()
        body, headers = await body_of(request) or None, {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                request.method, self._engine_url + request.path, data=body, headers=headers
            ) as answer:
                return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)
        except (aiohttp.ClientConnectionError, TimeoutError):
            return _error(503, "the engine is not answering")

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request)  # first: versions come and go meanwhile
        if not serves(self.state) or self._closed or not self.versions:
            return self._not_ready()
        pinned = request.headers.get(VERSION_HEADER)
        version = select_version(self.versions, pinned, request.headers.get(PREFERRED_HEADER))
        if version is None:
            served = ", ".join(map(str, self.versions))
            return _error(409, f"this node serves version {served}, not {pinned}")
        said: tracing.Said = {attributes.WEIGHT_VERSION: version}
        asked_in = request.headers.get(TRACE_HEADER, "")
        with (
            self._track(request, version) as (name, mark),
            tracing.span(f"POST {request.path}", said, asked_in, "server") as own,
        ):
            headers = {"Content-Type": "application/json", **own.headers}
            body = add_cache_salt(body, version, name)
            try:
                async with self._session.post(self._engine_url + request.path, data=body, headers=headers) as answer:
                    own.note({"http.response.status_code": answer.status})
                    if answer.content_type != "text/event-stream":
                        return web.Response(
                            body=await answer.read(), status=answer.status, content_type=answer.content_type
                        )
                    return await stream(request, answer, mark)
            except (aiohttp.ClientConnectionError, TimeoutError):
                return _error(503, "the engine is not answering")

    @contextmanager
    def _track(self, request: web.Request, version: int) -> Iterator[tuple[str, StampEvent]]:
        """Around a call: what its model is called inside vLLM, if not as it was asked, and what marks its events."""
        name, asked = self.engine_model_name(version), self._residents.model
        self._open[id(request)] = request
        try:
            if name:
                with self._residents.track_call(version):
                    yield name, lambda event: stamp_event(event, version, name, asked)
            else:
                yield "", lambda event: stamp_event(event, self.version or 0)
        finally:
            del self._open[id(request)]
            self._ended.set()
            self._ended.clear()

    def _not_ready(self) -> web.Response:
        return _error(503, f"this node is {'taking weights' if serves(self.state) else self.state}", RETRY_AFTER)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body: dict[str, Any] = {"error": {"message": message, "type": "server_error", "param": None, "code": status}}
    return web.Response(text=json.dumps(body), status=status, content_type="application/json", headers=headers)
