"""A scripted OpenAI-compatible endpoint outside the fleet, and a gateway that asks it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
from aiohttp import web
from aiohttp.test_utils import TestServer

from lightningbus.runners.gateway.engines.connection_reuse import ConnectionReuse
from lightningbus.runners.gateway.external.external_endpoints import ExternalEndpoints
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.settings import EndpointSettings
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.spans import Span
from lightningbus.schemas.tasks import Task
from tests.runners.conftest import task

KEY = "sk-external-0123456789"
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
HEAD = {"id": "chatcmpl-e1", "created": 5, "model": "gpt-9-2031", "system_fingerprint": "fp_1"}
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"content": "It "},
    {"content": "adds."},
    {"tool_calls": [{"index": 0, **TOOL_CALL, "function": {"name": "add", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
]
MESSAGE = {"role": "assistant", "content": "It adds.", "tool_calls": [TOOL_CALL], "refusal": None}


class ScriptedEndpoint:
    """Answers `MESSAGE` to who has the key, plain or streamed; ``faults`` are played first, one per request.

    A fault is a status, ``break`` (amid the text), ``break early`` (before it), ``stall`` (amid the text), ``no JSON``
    or ``hang``.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.may_end = asyncio.Event()
        """Until it is set, no stream comes to its end after the last event."""
        self.may_end.set()
        self.peers: set[Any] = set()
        """Client ends of the connections that requests came by."""
        self.newline, self.done = "\n", True
        self.embedded: dict[str, Any] = {}
        """The answer to requests for embeddings and moderations."""
        self.url = ""
        self.close: Callable[[], Awaitable[None]]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(body := await request.json())
        self.headers.append(dict(request.headers))
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            authorization = request.headers.get("Authorization", "")
            return web.json_response({"error": {"message": f"Incorrect API key: {authorization}"}}, status=401)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "hang":
            await asyncio.Event().wait()
        if fault.isdecimal():
            error = {"error": {"message": f"no, {KEY}", "type": "invalid_request_error"}}
            return web.json_response(error, status=int(fault), headers={"Retry-After": "0"})
        if fault == "no JSON":
            return web.Response(text="<html>")
        if request.path.endswith(("/embeddings", "/moderations")):
            return web.json_response(self.embedded)
        is_chat = request.path.endswith("/chat/completions")
        if body.get("stream"):
            return await self._stream(request, fault, is_chat)
        content = {"message": MESSAGE} if is_chat else {"text": "It adds."}
        reason = "tool_calls" if is_chat else "stop"
        return web.json_response(
            {**HEAD, "choices": [{"index": 0, "finish_reason": reason, **content}], "usage": USAGE}
        )

    async def _stream(self, request: web.Request, fault: str, is_chat: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        pieces: list[dict[str, Any]] = [{"delta": delta} for delta in DELTAS]
        if not is_chat:
            pieces = [{"text": "It "}, {"text": "adds."}]
        pieces[-1]["finish_reason"] = "tool_calls" if is_chat else "stop"
        end = self.newline * 2
        await response.write(f": processing{end}".encode())
        for number, piece in enumerate(pieces):
            if (number, fault) in ((1, "break early"), (2, "break")):
                assert request.transport is not None
                request.transport.close()
                return response
            if (number, fault) == (2, "stall"):
                await asyncio.Event().wait()
            event = {**HEAD, "choices": [{"index": 0, "finish_reason": None, **piece}]}
            await response.write(f"data: {json.dumps(event)}{end}".encode())
        await response.write(f"data: {json.dumps({**HEAD, 'choices': [], 'usage': USAGE})}{end}".encode())
        if self.done:
            await response.write(f"data: [DONE]{end}".encode())
        await self.may_end.wait()
        return response


class NoNodes:
    """A fleet without inference nodes."""

    def members(self) -> list[Heartbeat]:
        return []

    def suspect(self, role: str, id: str) -> None:
        """There is none."""

    async def wait_for_change(self) -> None:
        await asyncio.Event().wait()


class Office:
    """Clients of a gateway whose task may call the endpoint as ``judge`` and as the role ``checker``."""

    def __init__(
        self,
        slot: Slot,
        recorder: AttemptRecorder,
        endpoint: ScriptedEndpoint,
        gateway: Gateway,
        connections: ConnectionReuse,
    ) -> None:
        self.slot, self.recorder, self.endpoint, self.gateway = slot, recorder, endpoint, gateway
        self.connections = connections
        self.openai = openai.AsyncOpenAI(base_url=f"{slot.base_url}/v1", api_key=slot.key, max_retries=0)
        self.anthropic = anthropic.AsyncAnthropic(base_url=slot.base_url, api_key=slot.key, max_retries=0)

    @property
    def spans(self) -> list[Span]:
        self.recorder.flush()
        return [span for batch in self.recorder.outbox for span in batch.spans]


@asynccontextmanager
async def serving_endpoint() -> AsyncIterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    for path in ("completions", "embeddings", "moderations"):
        app.router.add_post(f"/v1/{path}", endpoint.answer)
    async with TestServer(app) as server:
        endpoint.url, endpoint.close = str(server.make_url("/v1")), server.close
        yield endpoint


@asynccontextmanager
async def opened(seconds: float = sys.float_info.max, key: str = KEY, **changes: Any) -> AsyncIterator[Office]:
    """An office whose rollout ends after so many seconds; its runner has this key."""

    async def send(attempt: AttemptRecorder, seconds: float) -> None:
        """Kept, for the test to look at."""

    office_task: Task = task(role_models={"checker": "judge"}, **changes)
    recorder = AttemptRecorder(office_task, 1, "runner")
    async with serving_endpoint() as endpoint:
        settings = EndpointSettings(url=endpoint.url, model="gpt-9", api_key_env="JUDGE_KEY")
        async with (
            ExternalEndpoints({"judge": settings}, {"JUDGE_KEY": key}) as endpoints,
            Gateway(NoNodes(), send, 1, endpoints=endpoints) as gateway,
        ):
            (slot,) = gateway.slots
            slot.environment()
            slot.begin(recorder, office_task, asyncio.get_running_loop().time() + seconds)
            office = Office(slot, recorder, endpoint, gateway, endpoints.connections)
            try:
                yield office
            finally:
                await office.openai.close()
                await office.anthropic.close()
