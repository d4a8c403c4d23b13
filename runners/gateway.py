"""The OpenAI-compatible endpoint an agent talks to: one URL per host slot, so every call is some rollout's.

``/slot/{k}/v1/…`` answers model calls and records them; ``/slot/{k}/otlp/v1/…`` takes the agent's own telemetry.
"""

import json
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from nats.errors import Error as NatsError

from bus import BusError, Fleet, StreamFull
from runners import continuation, history, otlp
from runners.call import Call
from runners.completion import Completion, UnusableAnswer
from runners.record import Attempt
from runners.stream import AgentStream, CannotGoOn, error_body
from runners.upstream import CONNECT_SECONDS, SILENCE_SECONDS, Errand, NoAnswer, Refused, UnknownModel, Upstream
from schemas.events import Heartbeat, Task

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 32 * 1024 * 1024
WAITS = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
PATIENCE_SECONDS = 5.0
"""How long an exporter, or a model call, waits for the bus to take spans."""
RETRY_AFTER_SECONDS = 1
MAX_MODEL_LEN = 4096
"""Taken where a node does not say how long its model's context is."""


Send = Callable[[Attempt, float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Running:
    """The attempt in a slot, its task, and when it must be over."""

    attempt: Attempt
    task: Task
    deadline: float


@dataclass
class Slot:
    """One place for an agent process. Whatever that process asks belongs to the rollout it runs now."""

    number: int
    base_url: str = ""
    key: str = ""
    running: "Running | None" = None

    def begin(self, attempt: Attempt, task: Task, deadline: float) -> None:
        """From now on calls to this slot belong to the attempt; ``deadline`` is in the event loop's time."""
        self.running = Running(attempt, task, deadline)

    def end(self) -> None:
        """Calls are refused until the next attempt begins."""
        self.running = None

    def environment(self) -> dict[str, str]:
        """What a new agent process is told, by the standard variables; the key of the one before it is void.

        One key per process, not per rollout: an agent may make its client once and keep it.
        """
        self.key = f"lb-{secrets.token_urlsafe(24)}"
        return {
            "OPENAI_BASE_URL": f"{self.base_url}/v1",
            "OPENAI_API_KEY": self.key,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{self.base_url}/otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{self.key}",
        }


class Gateway:
    """Serves all slots of a runner on one loopback port."""

    def __init__(
        self, fleet: Fleet, send: Send, slots: int, host: str = "127.0.0.1", token_in_token_out: bool = True
    ) -> None:
        """``send`` publishes what an attempt has cut so far, within seconds or raising `BusError`."""
        self._send = send
        self.slots = [Slot(number) for number in range(slots)]
        self._fleet = fleet
        self._host = host
        self._token_in_token_out = token_in_token_out
        self._app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        self._app.router.add_post("/slot/{k}/v1/chat/completions", self._chat)
        self._app.router.add_post("/slot/{k}/v1/completions", self._completions)
        self._app.router.add_get("/slot/{k}/v1/models", self._models)
        self._app.router.add_post("/slot/{k}/otlp/v1/{signal}", self._otlp)
        self.upstream: Upstream

    async def __aenter__(self) -> "Gateway":
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=WAITS)
        self.upstream = Upstream(self._fleet, self._session)
        # A client that goes away cancels its handler, and with it the engine's work.
        self._runner = web.AppRunner(self._app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        listener = socket.create_server((self._host, 0))
        await web.SockSite(self._runner, listener).start()
        for slot in self.slots:
            slot.base_url = f"http://{self._host}:{listener.getsockname()[1]}/slot/{slot.number}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._call(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._call(request, chat=False)

    async def _call(self, request: web.Request, chat: bool) -> web.StreamResponse:
        _, running = self._authorised(request)
        try:
            call = Call.parse(json.loads(await request.read()), chat)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, "request_too_large", f"a request may have {MAX_REQUEST_BYTES} bytes")
        except (ValueError, RecursionError) as error:
            return _error(400, "invalid_request_error", str(error))
        try:
            return await self._answer(request, running, call)
        except UnknownModel as error:
            return _error(404, "model_not_found", str(error))
        except Refused as refused:
            return web.Response(status=refused.status, body=refused.body, content_type="application/json")
        except NoAnswer as error:
            running.attempt.infra = running.attempt.infra or str(error)
            return _error(504, "timeout", str(error))

    async def _answer(self, request: web.Request, running: Running, call: Call) -> web.StreamResponse:
        task, attempt = running.task, running.attempt
        errand = Errand(attempt, call.model, task.model, task.weight_version, running.deadline)
        prompt = await self._prompt(errand, call, task.sampling)
        completion = Completion(call, task.sampling, task.weight_version, prompt)
        stream = AgentStream(request, live=completion.continuable) if call.streams else None
        started_ns = time.time_ns()
        served_by: list[str] = []
        try:
            async with aclosing(
                self.upstream.ask(errand, lambda node: completion.request(_max_model_len(node)))
            ) as tries:
                async for node, chunks in tries:
                    if stream is not None and not completion.begun:
                        stream.begin_anew()
                    try:
                        async for chunk in chunks:
                            if node.id not in served_by:
                                served_by = [*served_by, node.id] if completion.begun else [node.id]
                            shown = completion.visible(completion.taken(chunk))
                            if stream is not None and shown is not None:
                                await stream.say(shown, completion.made)
                        parts = list(completion.parts())
                        break
                    except (UnusableAnswer, aiohttp.ClientError, TimeoutError, ValueError) as error:
                        said = str(error) or type(error).__name__
                        log.warning("%s: a model call failed amid the answer: %s", node.id, said)
        except (NoAnswer, Refused, CannotGoOn) as error:
            if stream is None or not stream.begun:
                raise
            attempt.infra = attempt.infra or str(error)
            return await stream.fail(str(error))
        asked = call.recorded()
        times = {"started_ns": started_ns, "ended_ns": max(time.time_ns(), started_ns)}
        if call.chat and completion.ended_by_itself:
            attempt.history.add(call, json.loads(parts[0].response), parts[0].tokens)
        for part in parts:
            attempt.add_call(part, node=",".join(served_by), role=call.role, request=asked, **times)
        if attempt.unsent:  # what is large is not kept until the end
            with suppress(BusError, NatsError, TimeoutError):
                await self._send(attempt, PATIENCE_SECONDS)
        return web.json_response(completion.response()) if stream is None else await stream.done()

    async def _prompt(self, errand: Errand, call: Call, sampling: dict[str, Any]) -> list[int] | None:
        """The tokens to ask with, where a new rendering of the history would not be what was sampled."""
        turn = errand.attempt.history.before(call) if call.chat and self._token_in_token_out else None
        if turn is None or not continuation.possible(call, sampling):
            return None
        new = await self.upstream.rendered(errand, call.rendering(call.body["messages"], answered=False))
        if new is None or new[: len(turn.tokens)] == turn.tokens:
            return None
        old = await self.upstream.rendered(errand, call.rendering(turn.messages, answered=True))
        return history.spliced(turn.tokens, old, new) if old is not None else None

    async def _models(self, request: web.Request) -> web.Response:
        self._slot(request)
        models = sorted(self.upstream.served())
        listed = [{"id": model, "object": "model", "created": 0, "owned_by": "lightningbus"} for model in models]
        return web.json_response({"object": "list", "data": listed})

    async def _otlp(self, request: web.Request) -> web.Response:
        slot, running = self._authorised(request)
        attempt = running.attempt
        signal, kind = request.match_info["signal"], request.content_type
        try:
            body = await request.read()  # aiohttp has undone Content-Encoding
            spans = otlp.read(signal, body, kind, attempt.rollout, attempt.root_id)
        except web.HTTPRequestEntityTooLarge:
            return otlp.answer(413, kind, f"a request may have {MAX_REQUEST_BYTES} bytes")
        except otlp.BadTelemetry as error:
            return otlp.answer(400, kind, str(error))
        if slot.running is not running:
            return otlp.answer(409, kind, "the rollout these spans belong to is over")
        refused = sum(not attempt.add(span) for span in spans)
        attempt.cut()
        try:
            await self._send(attempt, PATIENCE_SECONDS)
        except StreamFull:
            return otlp.answer(429, kind, "the bus is full", retry_after=RETRY_AFTER_SECONDS)
        except (BusError, NatsError):
            return otlp.answer(503, kind, "the bus does not answer", retry_after=RETRY_AFTER_SECONDS)
        return otlp.accepted(signal, kind, refused)

    def _slot(self, request: web.Request) -> Slot:
        number = request.match_info["k"]
        slot = self.slots[int(number)] if number.isdecimal() and int(number) < len(self.slots) else None
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        known = slot is not None and bool(slot.key) and secrets.compare_digest(slot.key.encode(), key.encode())
        if slot is None or scheme.lower() != "bearer" or not known:
            raise _refusal(401, "invalid_api_key", "this key is not valid here")
        return slot

    def _authorised(self, request: web.Request) -> tuple[Slot, Running]:
        slot = self._slot(request)
        if slot.running is None:
            raise _refusal(409, "no_rollout", "no rollout is running: a model call belongs to one")
        return slot, slot.running


def _max_model_len(node: Heartbeat) -> int:
    said = node.detail.get("max_model_len")
    return said if isinstance(said, int) else MAX_MODEL_LEN


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response(error_body(kind, message), status=status)


def _refusal(status: int, kind: str, message: str) -> web.HTTPException:
    error = web.HTTPUnauthorized if status == 401 else web.HTTPConflict
    return error(text=json.dumps(error_body(kind, message)), content_type="application/json")
