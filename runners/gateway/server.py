"""The endpoint an agent talks to, in its own dialect: one URL per host slot, so every call is some rollout's.

``/slot/{k}/v1/…`` answers model calls and records them, takes events, and gives prompts. ``/slot/{k}/otlp/v1/…`` takes
the agent's own telemetry, ``/slot/{k}/events`` events where an agent of Agent Lightning 1.0 sends them.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from nats.errors import Error as NatsError

from lightningbus.bus.errors import BusError, StreamFullError
from lightningbus.bus.security.secrets import constant_time_equal
from lightningbus.common.http_server import HttpServer
from lightningbus.common.observability import metrics
from lightningbus.common.observability.metric_registry import request_metrics
from lightningbus.common.unix_sockets import PathTooLongError, bind_unix_socket, private_directory
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.gateway.admission import Admission, RateLimitedError, RateLimits
from lightningbus.runners.gateway.call_parser import CallParser
from lightningbus.runners.gateway.engines.engine_failures import EnginesFailedError
from lightningbus.runners.gateway.engines.upstream import (
    CONNECT_SECONDS,
    READ_TIMEOUT_SECONDS,
    CallContext,
    Nodes,
    NoNodeAvailableError,
    UnknownModelError,
    Upstream,
    UpstreamRejectedError,
)
from lightningbus.runners.gateway.external.external_call import ExternalCallHandler
from lightningbus.runners.gateway.external.external_endpoints import ExternalEndpoints
from lightningbus.runners.gateway.external.external_input import DEFAULT_MODELS, ExternalInputHandler
from lightningbus.runners.gateway.handler import PUBLISH_TIMEOUT_SECONDS, ModelCallHandler, PublishSpans
from lightningbus.runners.gateway.requests import (
    IN_FLIGHT_KEY,
    KEEPALIVE_KEY,
    ApiError,
    Handler,
    close_unless_kept,
    max_bytes,
    raise_on_malformed,
    read_limited_body,
    render_errors,
    too_large,
)
from lightningbus.runners.gateway.slot import ActiveRollout, Slot
from lightningbus.runners.protocol.dialects.base import Dialect
from lightningbus.runners.protocol.dialects.gemini import describe_model
from lightningbus.runners.protocol.dialects.registry import (
    APIS,
    COUNT_TOKENS,
    GEMINI_APIS,
    GEMINI_COUNT,
    GEMINI_MODEL,
    STREAM_CONTENT,
    Api,
    translate_error,
)
from lightningbus.runners.protocol.model_names import models_of
from lightningbus.runners.protocol.request import find_invalid_sampling
from lightningbus.runners.recording import otlp
from lightningbus.runners.recording.agent_events import EventContext, convert_event, parse_event
from lightningbus.runners.recording.otlp_limits import InvalidOtlpError
from lightningbus.runners.recording.refusals import Refusals

log = logging.getLogger(__name__)

WAITING_STATUS = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_TIMEOUT_SECONDS)
RETRY_AFTER_SECONDS = 1
MAX_INLINE_BYTES = 8192
"""Largest telemetry parsed in the event loop: for so little, handing it to a thread would take longer."""
MAX_INLINE_CALL_BYTES = 64 * 1024
"""Largest model call or event parsed in the event loop."""
UNSERVED = {
    "responses/compact": "send the whole input, or let the agent summarise it by a model call of its own",
    "conversations{rest:.*}": (
        "no conversation is kept here; use a session that the client keeps, such as SQLiteSession of openai-agents"
    ),
}
"""Routes of vendors that need a service which keeps state, and what to use instead."""
OTHER_GEMINI_METHOD = "of this API generateContent, streamGenerateContent and countTokens are"
Decoded = TypeVar("Decoded")
SLOT_KEY = web.RequestKey("slot", Slot)
"""Key of the slot that a request's key belongs to."""


class Gateway:
    """Serves all slots of a runner on one loopback port, and on a socket if asked to."""

    def __init__(
        self,
        fleet: Nodes,
        send: PublishSpans,
        slots: int,
        host: str = "127.0.0.1",
        token_in_token_out: bool = True,
        inference_api_key: str = "",
        sticky_weight_version: bool = False,
        allowance: RateLimits | None = None,
        at_socket: bool = False,
        endpoints: ExternalEndpoints | None = None,
        ignored_fields: Collection[str] = (),
        model_aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the gateway; ``send`` publishes an attempt's finished batches, within seconds or raising `BusError`.

        ``inference_api_key`` is for the inference nodes: agents have keys of their own. ``allowance`` is each slot's.
        ``at_socket``: listen on a Unix socket too, for agents that have no network. ``endpoints`` answer their models
        before any node; they are open. ``ignored_fields`` of requests are left out. ``model_aliases``: models by
        patterns of names that agents use.
        """
        self.endpoints = endpoints or ExternalEndpoints({}, {})
        self._calls = CallParser(self.endpoints.names, ignored_fields, model_aliases or {})
        self._inference_api_key, self._sticky_weight_version = inference_api_key, sticky_weight_version
        self._send = send
        self.slots = [Slot(number, admission=Admission(allowance or RateLimits())) for number in range(slots)]
        self._fleet = fleet
        self._host, self._at_socket = host, at_socket
        self.paths: dict[str, str] = {}
        """Values for a sandbox's placeholders: the socket, as ``gateway``, and the ``address`` for agents."""
        self._exits = contextlib.ExitStack()
        self._token_in_token_out = token_in_token_out
        self._decoder = ThreadPoolExecutor(1, "decoder")
        self._listening = HttpServer()
        before = [
            self._listening.middleware,
            request_metrics(metrics.gateway_requests),
            render_errors,
            self._authenticate_and_admit,
        ]
        self._app = web.Application(middlewares=before)  # how much is read: `read_limited_body`
        self._app.on_response_prepare.append(close_unless_kept)
        for path, api in APIS.items():
            self._app.router.add_post(f"/slot/{{k}}/v1/{path}", partial(self._call, api))
        for path, api in GEMINI_APIS.items():
            self._app.router.add_post(f"/slot/{{k}}/v1beta/{path}", partial(self._call, api))
        for version in ("v1", "v1beta"):
            count = partial(self._count, GEMINI_COUNT, "totalTokens")
            self._app.router.add_post(f"/slot/{{k}}/{version}/{COUNT_TOKENS}", count)
        # Clients of Messages add /v1 to their base URL, or expect it there.
        self._app.router.add_post("/slot/{k}/messages", partial(self._call, APIS["messages"]))
        for version in ("", "/v1"):
            count = partial(self._count, APIS["messages"], "input_tokens")
            self._app.router.add_post(f"/slot/{{k}}{version}/messages/count_tokens", count)
        for path in DEFAULT_MODELS:
            self._app.router.add_post(f"/slot/{{k}}/v1/{path}", partial(self._pass_on, path))
        for path, sentence in UNSERVED.items():
            self._app.router.add_route("*", f"/slot/{{k}}/v1/{path}", partial(self._refuse, sentence))
        self._app.router.add_get("/slot/{k}/v1/models", self._models)
        self._app.router.add_get("/slot/{k}/v1/models/{model}", self._model)
        self._app.router.add_get("/slot/{k}/v1beta/models", self._gemini_models)
        self._app.router.add_get(f"/slot/{{k}}/v1beta/{GEMINI_MODEL}", self._gemini_model)
        self._app.router.add_route(
            "*", f"/slot/{{k}}/v1beta/{GEMINI_MODEL}", partial(self._refuse, OTHER_GEMINI_METHOD)
        )
        self._app.router.add_get("/slot/{k}/v1/prompts/{name}", self._prompt)
        self._app.router.add_post("/slot/{k}/otlp/v1/{signal}", self._otlp)
        self._app.router.add_post("/slot/{k}/otlp", self._otlp)  # some exporters add no path for the signal
        for path in ("events", "v1/events"):
            self._app.router.add_post(f"/slot/{{k}}/{path}", self._event)
        self.upstream: Upstream
        self._handler: ModelCallHandler

    async def __aenter__(self) -> "Gateway":
        """Start listening; raise `AgentStartError` where the Unix socket cannot be opened."""
        listeners = self._listeners()
        address = f"{self._host}:{listeners[0].getsockname()[1]}"
        self.paths["address"] = address
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=WAITING_STATUS)
        self.upstream = Upstream(self._fleet, self._session, self._inference_api_key, self._sticky_weight_version)
        self._handler = ModelCallHandler(self.upstream, self._send, self._token_in_token_out)
        self._external = ExternalCallHandler(self.endpoints, self._send)
        self._external_input = ExternalInputHandler(self.endpoints, self._send)
        await self._listening.open(self._app, *listeners, shutdown_seconds=1)
        for slot in self.slots:
            slot.base_url = f"http://{address}/slot/{slot.number}"
        return self

    def _listeners(self) -> list[socket.socket]:
        """Open the listeners; the first has a port."""
        if not self._at_socket:
            return [socket.create_server((self._host, 0))]
        try:
            path = self._exits.enter_context(private_directory("gateway")) / "socket"
        except PathTooLongError as error:
            raise AgentStartError(str(error)) from error
        self.paths["gateway"] = str(path)
        return [socket.create_server((self._host, 0)), bind_unix_socket(path)]

    async def __aexit__(self, *_: object) -> None:
        await self._listening.close()
        self._decoder.shutdown(wait=False, cancel_futures=True)
        await self._session.close()
        self._exits.close()

    @web.middleware
    async def _authenticate_and_admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate a request and admit it by its head, before its body is read."""
        if request.match_info.http_exception is not None:  # no route of ours
            return await handler(request)
        try:
            request[SLOT_KEY] = slot = self._find_slot(request)
            admission = slot.admission
            request[KEEPALIVE_KEY] = admission.allow_keepalive(request.protocol)
            with admission.request(max_bytes(request)) as request[IN_FLIGHT_KEY]:
                return await handler(request)
        except RateLimitedError as error:
            raise ApiError(429, "rate_limit_exceeded", str(error), error.retry_after) from error

    async def _call(self, api: Api, request: web.Request) -> web.StreamResponse:
        slot, running = self._running(request)
        body = await read_limited_body(request)
        with raise_on_malformed():
            if api is APIS[STREAM_CONTENT] and request.query.get("alt") != "sse":
                raise ValueError("a stream of this API comes as server-sent events: add alt=sse to the URL's query")
            parse = partial(self._parse, api, request, body, running)
            dialect, prompt_versions = await self._decode(slot, parse, len(body), MAX_INLINE_CALL_BYTES)
            if problem := find_invalid_sampling(running.task.sampling_params):
                raise ValueError(problem)
            num_choices = dialect.call.num_choices(running.task.sampling_params)
            slot.admission.admit_choices(request[IN_FLIGHT_KEY], num_choices)
        try:
            with _map_upstream_errors(running):
                if dialect.call.model in self.endpoints.names:
                    return await self._external.handle(request, running, dialect, prompt_versions)
                return await self._handler.handle(request, running, dialect, prompt_versions)
        except UpstreamRejectedError as refused:
            body = translate_error(api, refused.status, refused.body, str(refused))
            return web.Response(status=refused.status, body=body, content_type="application/json")

    async def _pass_on(self, path: str, request: web.Request) -> web.Response:
        """Have an external endpoint answer a request that samples nothing."""
        slot, running = self._running(request)
        body = await read_limited_body(request)
        with raise_on_malformed():
            call = self._calls.parse_input(body, running, self._models_for(slot), DEFAULT_MODELS[path])
        try:
            with _map_upstream_errors(running):
                return await self._external_input.handle(request, running, call, path)
        except UpstreamRejectedError as refused:
            return web.Response(status=refused.status, body=refused.body, content_type="application/json")

    async def _refuse(self, sentence: str, request: web.Request) -> web.Response:
        raise ApiError(404, "unknown_url", f"{request.method} {request.path} is not served: {sentence}")

    def _parse(
        self, api: Api, request: web.Request, body: bytes, running: ActiveRollout
    ) -> tuple[Dialect, Mapping[str, int]]:
        """Parse a call as `CallParser.parse`, with the model that the path names."""
        model = request.match_info.get("model")
        return self._calls.parse(api, body, running, self._models_for(request[SLOT_KEY]), model)

    async def _count(self, api: Api, answer: str, request: web.Request) -> web.Response:
        """Count the tokens of a prompt without sending it; the answer has them in the field ``answer``."""
        slot, running = self._running(request)
        task, body = running.task, await read_limited_body(request)
        with raise_on_malformed():
            parse = partial(self._parse, api, request, body, running)
            dialect, _ = await self._decode(slot, parse, len(body), MAX_INLINE_CALL_BYTES)
            call = dialect.call
        if call.model in self.endpoints.names:
            raise ApiError(
                400, "invalid_request_error", f"model {call.model!r} is external: its tokens are not counted"
            )
        context = CallContext.create(running.recorder, call.model, task, running.deadline)
        with _map_upstream_errors(running):
            prompt = await self._handler.formats.tokenize(
                context, call.to_tokenize_request(call.body["messages"], is_answered=False)
            )
        if prompt is None:
            raise ApiError(400, "invalid_request_error", "the engine does not render this prompt")
        return web.json_response({answer: len(prompt.token_ids)})

    async def _models(self, request: web.Request) -> web.Response:
        models = sorted(self._models_for(request[SLOT_KEY]))
        return web.json_response({"object": "list", "data": [self._describe(model, model) for model in models]})

    async def _model(self, request: web.Request) -> web.Response:
        return web.json_response(self._describe(*self._find_model(request)))

    async def _gemini_models(self, request: web.Request) -> web.Response:
        models = sorted(self._models_for(request[SLOT_KEY]))
        return web.json_response(
            {"models": [describe_model(model, self.upstream.find_context(model)) for model in models]}
        )

    async def _gemini_model(self, request: web.Request) -> web.Response:
        name, model = self._find_model(request)
        return web.json_response(describe_model(name, self.upstream.find_context(model)))

    def _find_model(self, request: web.Request) -> tuple[str, str]:
        """Find the model that a path names; return the name and the model, or raise `ApiError`."""
        name, known = request.match_info["model"], self._models_for(request[SLOT_KEY])
        model = self._calls.model_of(name, known)
        if model not in known:
            raise ApiError(404, "model_not_found", f"model {name!r} is not served")
        return name, model

    def _describe(self, name: str, model: str) -> dict[str, Any]:
        """Describe a model by the name that the agent has for it, with its context as vLLM and Anthropic say it."""
        card = {"id": name, "object": "model", "created": 0, "owned_by": "lightningbus"}
        length = self.upstream.find_context(model)
        return card if length is None else {**card, "max_model_len": length, "max_input_tokens": length}

    def _models_for(self, slot: Slot) -> set[str]:
        """List the models that answer now, and those that the rollout's task may call."""
        served = self.upstream.known_models() | self.endpoints.names
        return served | models_of(slot.rollout.task) if slot.rollout is not None else served

    async def _prompt(self, request: web.Request) -> web.Response:
        """Answer with the rollout's version of a prompt that the agent asks for by name."""
        _, running = self._running(request)
        name = request.match_info["name"]
        for prompt in running.prompts:
            if prompt.name == name:
                return web.json_response({"name": name, "version": prompt.version, "text": prompt.text})
        known = ", ".join(prompt.name for prompt in running.prompts) or "none"
        raise ApiError(404, "prompt_not_found", f"this agent has no prompt {name!r}; these are: {known}")

    async def _otlp(self, request: web.Request) -> web.Response:
        signal, kind = request.match_info.get("signal", "traces"), request.content_type
        if signal not in otlp.SIGNALS:
            return otlp.error_response(404, kind, f"OTLP has no signal {signal!r}")
        slot, running = self._running(request)
        attempt = running.recorder
        try:
            body = await read_limited_body(request)  # aiohttp has undone Content-Encoding
            refusals = Refusals()
            parse = partial(otlp.parse_request, signal, body, kind, attempt.rollout, attempt.root_id, refusals)
            spans = await self._decode(slot, parse, len(body), MAX_INLINE_BYTES)
        except web.HTTPRequestEntityTooLarge:
            return otlp.error_response(413, kind, too_large(request))
        except web.HTTPBadRequest as error:
            return otlp.error_response(400, kind, error.text or "")
        except InvalidOtlpError as error:
            return otlp.error_response(400, kind, str(error))
        if slot.rollout is not running:
            return otlp.error_response(409, kind, "the rollout these spans belong to is over")
        attempt.record_refusals(refusals)
        for span in spans:
            if refusal := attempt.add(span):
                refusals.add(refusal)
        attempt.flush()
        try:
            await self._send(attempt, PUBLISH_TIMEOUT_SECONDS)
        except StreamFullError:
            return otlp.error_response(429, kind, "the bus is full", retry_after=RETRY_AFTER_SECONDS)
        except (BusError, NatsError):
            return otlp.error_response(503, kind, "the bus does not answer", retry_after=RETRY_AFTER_SECONDS)
        return otlp.success_response(signal, kind, refusals)

    async def _event(self, request: web.Request) -> web.Response:
        slot, running = self._running(request)
        recorder, body = running.recorder, await read_limited_body(request)
        with raise_on_malformed():
            event = await self._decode(slot, partial(parse_event, body), len(body), MAX_INLINE_CALL_BYTES)
            span = convert_event(event, EventContext.of(recorder, time.time_ns()))
        if slot.rollout is not running:
            raise ApiError(409, "no_rollout", "the rollout this event belongs to is over")
        if refusal := recorder.add(span):
            if refusal.kind in ("size", "room"):
                raise ApiError(413, "request_too_large", "the attempt has no room for this event")
            raise ApiError(400, "invalid_request_error", f"the event is refused: {refusal.sentence}")
        return web.json_response({})

    async def _decode(self, slot: Slot, decode: Callable[[], Decoded], num_bytes: int, max_inline: int) -> Decoded:
        """Decode a body of this size: in the event loop, which blocks meanwhile, only up to ``max_inline``."""
        if num_bytes <= max_inline:
            return decode()
        async with slot.decoding:
            return await asyncio.get_running_loop().run_in_executor(self._decoder, decode)

    def _find_slot(self, request: web.Request) -> Slot:
        number = request.match_info["k"]
        slot = self.slots[int(number)] if number.isdecimal() and int(number) < len(self.slots) else None
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        # Anthropic's and Google's clients have headers of their own, and may send another's token beside theirs.
        keys = [bearer if scheme.lower() == "bearer" else "", request.query.get("key", "")]
        keys += [request.headers.get(name, "") for name in ("x-api-key", "x-goog-api-key")]
        known = [slot is not None and constant_time_equal(slot.key, key) for key in keys]
        if slot is None or not slot.key or not any(known):
            raise ApiError(401, "invalid_api_key", "this key is not valid here")
        return slot

    def _running(self, request: web.Request) -> tuple[Slot, ActiveRollout]:
        slot = request[SLOT_KEY]
        if slot.rollout is None:
            raise ApiError(409, "no_rollout", "no rollout is running: model calls and events belong to one")
        return slot, slot.rollout


@contextmanager
def _map_upstream_errors(running: ActiveRollout) -> Iterator[None]:
    """Map errors of the nodes: an unknown model is the client's mistake, no answer in time is our failure."""
    try:
        yield
    except UnknownModelError as error:
        raise ApiError(404, "model_not_found", str(error)) from error
    except EnginesFailedError as error:
        running.recorder.add_engine_failure(str(error), error.is_deadly)
        raise ApiError(503, "server_error", str(error)) from error
    except NoNodeAvailableError as error:
        running.recorder.infra_error = running.recorder.infra_error or str(error)
        raise ApiError(504, "timeout", str(error)) from error
