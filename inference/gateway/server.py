"""The HTTP proxy that runners call: vLLM's model routes only, each chunk stamped with the version of its tokens.

vLLM 0.31 labels an engine with a version, not a token. Between the reply to a pause and the resume no token is
sampled: chunks that arrive before are of the old version, later ones of the new version.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from lightningbus.bus.fleet.node_state import is_ready
from lightningbus.bus.security.secrets import has_bearer
from lightningbus.common.http_server import HttpServer, read_body
from lightningbus.common.listeners import open_listener, url_of
from lightningbus.common.observability import metrics, tracing
from lightningbus.common.observability.metric_registry import request_metrics
from lightningbus.inference.engine.base import EngineError, EngineUnreachableError, Forward
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.version_stamp import add_cache_salt, stream
from lightningbus.inference.settings import MAX_REQUESTS
from lightningbus.inference.version_registry import select_version
from lightningbus.schemas.fleet import PARSE_PATH
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.subjects import TRACE_HEADER

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


class _ModelField(msgspec.Struct):
    """The model field of a request."""

    model: str | None = None


class Gateway:
    """Serves the node's public routes, each model's as its versions and state allow."""

    def __init__(
        self,
        forward: Forward,
        host: str,
        port: int,
        models: Sequence[ServedModel],
        inference_api_key: str = "",
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        """Prepare the gateway; ``forward`` reaches the engine.

        Requests need ``inference_api_key`` unless it is empty. ``max_requests`` are handled at once.
        """
        self._to_engine = forward
        self.models = {model.name: model for model in models}
        """Models by their public names."""
        self._inference_api_key, self._max_requests, self._num_requests = inference_api_key, max_requests, 0
        self._host, self._port = host, port
        self.engine_id = ""
        """Id of the running engine process; letters, digits and ``_ - :``."""
        self.address = ""
        self._listening = HttpServer()
        counting = request_metrics(metrics.inference_requests, metrics.inference_requests_in_flight)
        middlewares = [self._listening.middleware, counting, self._admit]
        self._app = app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=middlewares)
        app.router.add_post("/v1/chat/completions", self._forward)
        app.router.add_post("/v1/completions", self._forward)
        app.router.add_post(PARSE_PATH, self._pass_on)
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

    @property
    def num_in_flight(self) -> int:
        """Number of requests that the engine is handling, of all models."""
        return sum(model.num_in_flight for model in self.models.values())

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
        states = {name: {"state": model.state, "version": model.newest} for name, model in self.models.items()}
        body = {"models": states} if len(states) > 1 else next(iter(states.values()))
        return web.json_response(body, status=200 if self._ready_models() else 503)

    def _ready_models(self) -> list[ServedModel]:
        return [model for model in self.models.values() if is_ready(model.state)]

    def _model_of(self, body: bytes) -> ServedModel | web.Response:
        """Find the model that a request names, or build the error for an unknown one."""
        try:
            name = msgspec.json.decode(body, type=_ModelField).model
        except msgspec.DecodeError:  # vLLM reports the error, unless the model is unknown
            name = None
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        model = self.models.get(name or "")
        served = ", ".join(self.models)
        return model or _error(404, f"this node serves {served}, not {name or 'a request that names no model'}")

    async def _pass_on(self, request: web.Request) -> web.Response:
        """Pass on a route that samples no tokens, so its response has no version."""
        if not self._ready_models():
            return _not_ready(next(iter(self.models.values())))
        body, headers = await read_body(request) or None, {"Content-Type": "application/json"}
        try:
            async with self._to_engine(request.method, request.path, body, headers) as response:
                body, content_type = await response.read(), response.content_type
                return web.Response(body=body, status=response.status, content_type=content_type)
        except EngineError:
            return _error(503, "the engine is not answering")

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)  # read first: versions may change meanwhile
        model = self._model_of(body)
        if isinstance(model, web.Response):
            return model
        if not model.is_answering:
            return _not_ready(model)
        pinned = request.headers.get(VERSION_HEADER)
        version = select_version(model.versions, pinned, request.headers.get(PREFERRED_HEADER))
        if version is None:
            routable = ", ".join(map(str, model.versions))
            return _error(409, f"this node serves version {routable}, not {pinned}")
        span_attributes: tracing.Attributes = {attributes.WEIGHT_VERSION: version}
        traceparent = request.headers.get(TRACE_HEADER, "")
        with (
            model.track(request, version, self.engine_id) as (engine_model, stamp),
            tracing.start_as_current_span(f"POST {request.path}", span_attributes, traceparent, "server") as span,
        ):
            headers = {"Content-Type": "application/json", **tracing.format_headers(span)}
            body = add_cache_salt(body, version, engine_model)
            try:
                async with self._to_engine("POST", request.path, body, headers) as response:
                    span.set_attributes({"http.response.status_code": response.status})
                    if response.content_type != "text/event-stream":
                        return web.Response(
                            body=await response.read(), status=response.status, content_type=response.content_type
                        )
                    return await stream(request, response, stamp)
            except EngineUnreachableError:
                return _error(503, "the engine is not answering")
            except EngineError:
                return _error(502, "the engine closed the connection before it answered")


def _not_ready(model: ServedModel) -> web.Response:
    return _error(503, f"this node is {'taking weights' if is_ready(model.state) else model.state}", RETRY_AFTER)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body: dict[str, Any] = {"error": {"message": message, "type": "server_error", "param": None, "code": status}}
    return web.Response(text=json.dumps(body), status=status, content_type="application/json", headers=headers)
