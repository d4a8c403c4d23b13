"""The HTTP proxy that runners call: vLLM's model routes only, each chunk stamped with the version of its tokens.

vLLM 0.31 labels an engine with a version, not a token. Between the reply to a pause and the resume no token is
sampled: chunks that arrive before are of the old version, later ones of the new version.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
from aiohttp import web

from bus.fleet.node_state import State, is_ready
from bus.security.secrets import has_bearer
from common.http_server import HttpServer, read_body
from common.listeners import open_listener, url_of
from common.observability import metrics, tracing
from common.observability.metric_registry import request_metrics
from inference.gateway.version_stamp import StampEvent, add_cache_salt, stamp_event, stream
from inference.settings import MAX_REQUESTS
from inference.version_registry import LoadedVersions, select_version
from schemas.semconv import attributes
from schemas.subjects import TRACE_HEADER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024 * 1024
HEALTH = "/health"
"""The only route without a key: state and version, for load balancers."""
RETRY_AFTER = {"Retry-After": "1"}
VERSION_HEADER = "X-Lightningbus-Version"
"""Pins a call: this version or none."""
PREFERRED_HEADER = "X-Lightningbus-Preferred-Version"
"""This version if it is routable, else the newest."""


class Gateway:
    """Serves the node's public routes, as `version` and `state` allow."""

    def __init__(
        self,
        engine_url: str,
        session: aiohttp.ClientSession,
        host: str,
        port: int,
        inference_api_key: str = "",
        max_requests: int = MAX_REQUESTS,
        versions: LoadedVersions | None = None,
    ) -> None:
        """``session`` reaches the engine at ``engine_url``. ``inference_api_key``: requests need it unless empty.

        ``max_requests``: handled at once; ``versions``: LoRA versions that the engine has loaded.
        """
        self._engine_url = engine_url
        self._inference_api_key, self._max_requests, self._num_requests = inference_api_key, max_requests, 0
        self._session = session
        self._host, self._port = host, port
        self._loaded = versions or LoadedVersions("", 1)
        self.version: int | None = None
        """Of the engine's own weights; None: there are none, or a base for adapters, which is no version."""
        self.engine_id = ""
        """Of the engine process that answers now; letters, digits and ``_ - :``."""
        self.state: State = "starting"
        self._in_flight: dict[int, web.Request] = {}
        """Requests that the engine is handling."""
        self._is_draining, self._call_ended = False, asyncio.Event()
        self.address = ""
        self._listening = HttpServer()
        counting = request_metrics(metrics.inference_requests, metrics.inference_requests_in_flight)
        middlewares = [self._listening.middleware, counting, self._admit]
        self._app = app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=middlewares)
        app.router.add_post("/v1/chat/completions", self._forward)
        app.router.add_post("/v1/completions", self._forward)
        app.router.add_post("/tokenize", self._pass_on)
        app.router.add_get("/v1/models", self._pass_on)
        app.router.add_get("/metrics", self._pass_on)  # vLLM's own
        app.router.add_get(HEALTH, self._health)

    async def __aenter__(self) -> "Gateway":
        listener = open_listener(self._host, self._port, "port")
        await self._listening.open(self._app, listener, shutdown_seconds=5)
        self.address = url_of(self._host, listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listening.close()

    async def flush_pending_chunks(self) -> None:
        """Stamp every chunk that has reached this process; call between pause and resume."""
        for _ in range(4):  # one iteration of the event loop each: socket read, stream fed, reader woken, chunk stamped
            await asyncio.sleep(0)

    @property
    def num_in_flight(self) -> int:
        """How many requests the engine is handling."""
        return len(self._in_flight)

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that serve new calls, newest last."""
        return self._loaded.routable or (() if self.version is None else (self.version,))

    @property
    def newest(self) -> int | None:
        """The version of a call that names none; None: it is rejected."""
        return select_version(self.versions, None, None)

    def engine_model_name(self, version: int) -> str:
        """The model name of a version inside vLLM; empty: the one that agents use."""
        return self._loaded.name(version) if version in self._loaded else ""

    @asynccontextmanager
    async def drained(self) -> AsyncIterator[None]:
        """The block runs without calls: those in flight have ended, and new ones get 503 with Retry-After."""
        self._is_draining = True
        try:
            await self._wait_idle()
            yield
        finally:
            self._is_draining = False

    async def abort_in_flight(self) -> None:
        """Abort every response in flight; runners continue at another node, from the tokens they have."""
        for request in self._in_flight.values():
            if request.transport is not None:
                request.transport.abort()
        await self._wait_idle()

    async def _wait_idle(self) -> None:
        while self._in_flight:
            await self._call_ended.wait()

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check key and limits before the request's body is read."""
        if request.path == HEALTH:
            return await handler(request)
        if self._inference_api_key and not has_bearer(
            self._inference_api_key, request.headers.get("Authorization", "")
        ):
            return _error(401, "this node requires the inference API key: set inference_api_key_file")
        if self._num_requests >= self._max_requests:
            return _error(429, f"this node answers {self._max_requests} requests at once", RETRY_AFTER)
        self._num_requests += 1
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"a request may have {MAX_REQUEST_BYTES} bytes")
        except (web.HTTPRequestTimeout, web.HTTPBadRequest) as error:
            return _error(error.status, error.text or "")
        finally:
            self._num_requests -= 1

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"state": self.state, "version": self.newest}, status=200 if is_ready(self.state) else 503
        )

    async def _pass_on(self, request: web.Request) -> web.Response:
        """Proxy a route that samples no tokens, so its response has no version."""
        if not is_ready(self.state):
            return self._not_ready()
        body, headers = await read_body(request) or None, {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                request.method, self._engine_url + request.path, data=body, headers=headers
            ) as response:
                body, content_type = await response.read(), response.content_type
                return web.Response(body=body, status=response.status, content_type=content_type)
        except (aiohttp.ClientConnectionError, TimeoutError):
            return _error(503, "the engine is not answering")

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)  # read first: versions may change meanwhile
        if not is_ready(self.state) or self._is_draining or not self.versions:
            return self._not_ready()
        pinned = request.headers.get(VERSION_HEADER)
        version = select_version(self.versions, pinned, request.headers.get(PREFERRED_HEADER))
        if version is None:
            routable = ", ".join(map(str, self.versions))
            return _error(409, f"this node serves version {routable}, not {pinned}")
        span_attributes: tracing.Attributes = {attributes.WEIGHT_VERSION: version}
        traceparent = request.headers.get(TRACE_HEADER, "")
        with (
            self._track(request, version) as (engine_model, stamp),
            tracing.start_as_current_span(f"POST {request.path}", span_attributes, traceparent, "server") as span,
        ):
            headers = {"Content-Type": "application/json", **tracing.format_headers(span)}
            body = add_cache_salt(body, version, engine_model)
            try:
                async with self._session.post(self._engine_url + request.path, data=body, headers=headers) as response:
                    span.set_attributes({"http.response.status_code": response.status})
                    if response.content_type != "text/event-stream":
                        return web.Response(
                            body=await response.read(), status=response.status, content_type=response.content_type
                        )
                    return await stream(request, response, stamp)
            except (aiohttp.ClientConnectionError, TimeoutError):
                return _error(503, "the engine is not answering")

    @contextmanager
    def _track(self, request: web.Request, version: int) -> Iterator[tuple[str, StampEvent]]:
        """Count a call while the block runs; yields its model's name inside vLLM (empty: unchanged) and its stamp."""
        engine_model, public_model = self.engine_model_name(version), self._loaded.model
        self._in_flight[id(request)] = request
        try:
            if engine_model:
                with self._loaded.track_call(version):
                    yield (
                        engine_model,
                        lambda event: stamp_event(event, version, self.engine_id, engine_model, public_model),
                    )
            else:
                yield "", lambda event: stamp_event(event, self.version or 0, self.engine_id)
        finally:
            del self._in_flight[id(request)]
            self._call_ended.set()
            self._call_ended.clear()

    def _not_ready(self) -> web.Response:
        return _error(503, f"this node is {'taking weights' if is_ready(self.state) else self.state}", RETRY_AFTER)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body: dict[str, Any] = {"error": {"message": message, "type": "server_error", "param": None, "code": status}}
    return web.Response(text=json.dumps(body), status=status, content_type="application/json", headers=headers)
