"""A scripted engine that speaks an inference node's protocol, and a runner in this process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVAL, ConsumerSpec
from lightningbus.runners import runner
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.spans import ModelCall, Span, SpanBatch
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls
from tests.polling import HANG_SECONDS

PROMPT, ANSWER = [1, 2], [7, 8]
AGENTS = Path(__file__).resolve().parents[1] / "agents"


class ScriptedEngine:
    """Answers as an inference node does, always `ANSWER`; ``faults`` are played first, one per request."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.version = 3
        self.choices = 1
        self.script: list[dict[str, Any]] = []
        """Deltas of a chat's answer, a token each, instead of `ANSWER`; the last says its ``finish_reason`` too."""
        self.address = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        chat = request.path.endswith("/chat/completions")
        prompt = PROMPT if chat or isinstance(body["prompt"], str) else body["prompt"]
        fault = self.faults.pop(0) if self.faults else ""
        if fault.isdecimal():
            return web.json_response({"error": {"message": "no"}}, status=int(fault))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if chat and self.script:
            return await self._play(response)
        built = len(prompt) - len(PROMPT) if prompt[len(PROMPT) :] == ANSWER[: len(prompt) - len(PROMPT)] else 0
        for token in ANSWER[built:]:
            fields: dict[str, Any] = {"index": 0, "token_ids": [token]}
            fields["finish_reason"] = "stop" if token == ANSWER[-1] else None
            if chat:
                fields |= {
                    "delta": {"role": "assistant", "content": "x"},
                    "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
                }
            else:
                fields |= {"text": "x", "prompt_token_ids": prompt, "logprobs": {"token_logprobs": [-0.25]}}
            said_by_all = [{**fields, "index": index} for index in range(self.choices)]
            event = {"weight_version": self.version, "id": "c", "model": "policy", "created": 1, "choices": said_by_all}
            event["prompt_token_ids"] = PROMPT if chat and token == ANSWER[0] else None
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
            if fault == "break" or (fault == "break at the end" and token == ANSWER[-1]):
                self.version += 1
                assert request.transport is not None
                request.transport.close()
                return response
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ANSWER) - built}
        await response.write(f'data: {{"choices": [], "usage": {json.dumps(usage)}}}\n\ndata: [DONE]\n\n'.encode())
        return response

    async def _play(self, response: web.StreamResponse) -> web.StreamResponse:
        for token, line in enumerate(self.script, 10):
            delta = {key: value for key, value in line.items() if key not in ("finish_reason", "stop_reason")}
            fields = {"index": 0, "token_ids": [token], "delta": delta, "finish_reason": line.get("finish_reason")}
            fields |= {
                "stop_reason": line.get("stop_reason"),
                "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
            }
            event = {
                "weight_version": self.version,
                "id": f"chatcmpl-{len(self.requests):032x}",
                "object": "chat.completion.chunk",
                "model": "policy",
                "created": 1,
            }
            event |= {"choices": [fields], "prompt_token_ids": PROMPT if token == 10 else None}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(self.script), "total_tokens": 99}
        await response.write(f'data: {{"choices": [], "usage": {json.dumps(usage)}}}\n\ndata: [DONE]\n\n'.encode())
        return response

    async def tokenize(self, request: web.Request) -> web.Response:
        """Renders no chats, as an engine without a template."""
        return web.Response(status=404)

    def routes(self, app: web.Application) -> None:
        """What a node serves."""
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/tokenize", self.tokenize)

    def status(self) -> dict[str, Any]:
        """What its heartbeat says beside state and version."""
        return {}

    @asynccontextmanager
    async def serving(self, bus: Bus, model: str = "policy", id: str = "scripted") -> AsyncIterator["ScriptedEngine"]:
        app = web.Application()
        self.routes(app)
        server = web.AppRunner(app)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        self.address = site.name if ":0" not in site.name else f"http://127.0.0.1:{server.addresses[0][1]}"
        alive = {"state": "ready", "address": self.address, "model": model, "version": 3}
        alive |= {"status": self.status()}
        async with bus.heartbeat("inference", id, lambda: alive):
            try:
                yield self
            finally:
                await server.cleanup()


@pytest.fixture
async def engine(bus: Bus) -> AsyncIterator[ScriptedEngine]:
    """A scripted engine that is alive on the bus."""
    async with ScriptedEngine().serving(bus) as serving:
        yield serving


@asynccontextmanager
async def running(bus: Bus, **settings: Any) -> AsyncIterator[asyncio.Event]:
    """A runner in this process while the block runs; yields its stop event."""
    stop = asyncio.Event()
    checked = RunnerSettings.model_validate(
        {"concurrency": 1, "working_dir": AGENTS, "drain_timeout_seconds": 5, **settings}
    )
    work = asyncio.create_task(runner.run(bus, checked, stop))
    try:
        yield stop
    finally:
        stop.set()
        await work


async def ended(
    bus: Bus,
    count: int = 1,
    final: bool | None = True,
    timeout: float = HANG_SECONDS,
    consumer: ConsumerSpec = STORE_EVAL,
) -> list[SpanBatch]:
    """The next attempts to end, each with all its spans; by default those that are the last word on their rollout."""
    actual: list[SpanBatch] = []
    before: dict[str, tuple[Span, ...]] = {}
    async with asyncio.timeout(timeout), bus.pull(consumer, slots=8) as puller:
        async for message in puller:
            event = message.event()
            await message.ack()
            if isinstance(event, SpanBatch):
                spans = before[event.execution_id] = (*before.get(event.execution_id, ()), *event.spans)
                if event.end is not None and final in (None, event.end.is_final):
                    actual.append(replace(event, spans=spans))
            if len(actual) == count:
                return actual
    raise AssertionError("the pull loop ended")


def calls_of(batch: SpanBatch) -> list[ModelCall]:
    """The model calls of an attempt, whole."""
    return expand_calls([span.call for span in batch.spans if span.call is not None])


def task(**changes: Any) -> Task:
    """A task of an evaluation; one that hangs ends before the test gives up, and says why."""
    fields = {"id": "t", "run_id": "run", "agent": "default", "input": {}, "mode": "eval"}
    return Task(**{**fields, "deadline": HANG_SECONDS / 2, **changes})
