"""An agent stops reading a stream once it has what it wants: the call is recorded, and the engine's work ends."""

import asyncio
import json
import time
from array import array
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from lightningbus.bus.client import Bus
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.spans import Span
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import calls_of, ended, running, task
from tests.runners.test_answers import Node, sent, serving

TOKENS = ["<tool>", "x", "</tool>"]


class TokenNode(Node):
    """Answers `TOKENS`, and then what ``rest`` says, as far as it may; notes when its answer is no longer read."""

    def __init__(self, *rest: dict[str, Any]) -> None:
        super().__init__()
        self._rest = rest
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for number, token in enumerate(TOKENS):
                await self._say(response, {"delta": {"content": token}, "token_ids": [10 + number]})
            for fields in self._rest:
                await self._say(response, {"delta": {}, "token_ids": [99], **fields})
            await self.may_end.wait()
            await response.write(b"data: [DONE]\n\n")
        finally:
            self.ended.set()
        return response

    async def _say(self, response: web.StreamResponse, fields: dict[str, Any]) -> None:
        choice = {"index": 0, "finish_reason": None, **fields}
        choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.5} for _ in choice["token_ids"]]}
        event = {"weight_version": 3, "id": "chatcmpl-c", "object": "chat.completion.chunk", "created": 1}
        event |= {"model": "policy", "choices": [choice], "prompt_token_ids": [1, 2]}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())


BODY: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 99}


def openai_of(slot: Slot) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{slot.base_url}/v1", api_key=slot.key, max_retries=0)


async def openai_leaves(slot: Slot, until: str) -> None:
    async with openai_of(slot) as client, await client.chat.completions.create(**BODY, stream=True) as stream:
        async for chunk in stream:
            if until in (chunk.choices[0].delta.content, chunk.choices[0].finish_reason):
                break


async def anthropic_leaves(slot: Slot, until: str) -> None:
    client = AsyncAnthropic(base_url=slot.base_url, api_key=slot.key, max_retries=0)
    async with client, client.messages.stream(**BODY) as stream:
        async for text in stream.text_stream:
            if text == until:
                break


async def responses_leaves(slot: Slot, until: str) -> None:
    client = openai_of(slot)
    async with client, await client.responses.create(model="policy", input="x", stream=True) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta" and event.delta == until:
                break


async def socket_closes(slot: Slot, until: str) -> None:
    host, _, port = slot.base_url.split("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({**BODY, "stream": True}).encode()
    head = f"POST /slot/0/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {slot.key}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await reader.readuntil(f'"{until}"'.encode())
    writer.close()


CLIENTS = [openai_leaves, anthropic_leaves, responses_leaves, socket_closes]


async def left(node: Node, slot: Slot, recorder: AttemptRecorder) -> Span:
    """The call's span, once node and slot are free of it."""
    async with asyncio.timeout(60):
        await node.ended.wait()
        while slot.admission.requests:
            await asyncio.sleep(0.01)
    recorder.flush()
    (span,) = [span for batch in recorder.outbox for span in batch.spans]
    return span


@pytest.mark.parametrize("leave", CLIENTS)
async def test_an_answer_that_was_left_amid_its_text_is_recorded_as_cut(leave: Any) -> None:
    node = TokenNode()
    async with serving(node, sent) as (_, slot, recorder):
        await leave(slot, "</tool>")
        call = (await left(node, slot, recorder)).call
        assert not node.may_end.is_set(), "the engine's answer was broken off"
    assert call is not None and call.finish_reason == "client_closed"
    assert call.response_ids == array("I", [10, 11, 12]).tobytes() and len(call.logprobs) == 12
    assert json.loads(call.response)["content"] == "<tool>x</tool>"
    assert [(run.version, run.start, run.end) for run in call.weight_versions] == [(3, 0, 3)]
    assert call.node == "n" and call.prompt_ids == array("I", [1, 2]).tobytes()


@pytest.mark.parametrize("leave", [openai_leaves, socket_closes])
@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_an_answer_that_was_left_at_its_finish_is_whole(leave: Any, reason: str) -> None:
    node = TokenNode({"finish_reason": reason})
    async with serving(node, sent) as (_, slot, recorder):
        await leave(slot, reason)
        call = (await left(node, slot, recorder)).call
        turns = recorder.history.turns
    assert call is not None and call.finish_reason == reason
    assert call.response_ids == array("I", [10, 11, 12, 99]).tobytes()
    assert bool(turns) is (reason == "stop"), "the next turn goes on with the tokens of an answer that ended"


async def test_the_next_turn_begins_with_what_was_left() -> None:
    node = TokenNode()
    async with serving(node, sent) as (_, slot, recorder):
        await openai_leaves(slot, "</tool>")
        await left(node, slot, recorder)
        prompt = recorder._prompts.encode(array("I", [1, 2, 10, 11, 12, 5]).tobytes())
    assert prompt.prefix_refs == ((0, 5),)


TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize("fields", [{"stream": True, "tools": TOOLS}, {"stream": False}])
async def test_an_answer_of_which_the_agent_got_nothing_has_no_tokens_and_says_why(fields: dict[str, Any]) -> None:
    """With tools, and without a stream, it is held back until it is whole; the agent gave up, and may ask again."""
    node = TokenNode()
    async with serving(node, sent) as (_, slot, recorder), aiohttp.ClientSession() as http:
        url, headers = f"{slot.base_url}/v1/chat/completions", {"Authorization": f"Bearer {slot.key}"}
        asking = asyncio.create_task(http.post(url, json={**BODY, **fields}, headers=headers))
        async with asyncio.timeout(60):
            while not recorder.last_weight_versions:
                await asyncio.sleep(0.01)
        asking.cancel()
        span = await left(node, slot, recorder)
    assert span.call is not None and span.call.response_ids == b""
    assert span.status_message == "the agent left before it got anything of the answer"


@pytest.mark.parametrize("until", ["</tool>", "stop"])
async def test_a_call_ended_before_the_agent_had_its_last_token(until: str) -> None:
    """A reward that the agent gives next starts after the call, and so belongs to it."""
    node = TokenNode(*[{"finish_reason": "stop"}] * (until == "stop"))
    async with serving(node, sent) as (_, slot, recorder):
        seen_at_ns = 0
        async with openai_of(slot) as client, await client.chat.completions.create(**BODY, stream=True) as stream:
            async for chunk in stream:
                if until in (chunk.choices[0].delta.content, chunk.choices[0].finish_reason):
                    seen_at_ns = time.time_ns()
                    break
        span = await left(node, slot, recorder)
    assert 0 < span.start_ns <= span.end_ns <= seen_at_ns


async def test_calls_that_are_open_when_the_agent_ends_are_cut_and_recorded() -> None:
    node = TokenNode()
    async with serving(node, sent) as (_, slot, recorder), openai_of(slot) as client:
        stream: AsyncIterator[Any] = aiter(await client.chat.completions.create(**BODY, stream=True))
        while (await anext(stream)).choices[0].delta.content != "</tool>":
            pass
        active = slot.rollout
        assert active is not None
        slot.end()
        await active.end_calls()
        assert recorder.calls == 1, "recorded before the attempt ends"
        call = (await left(node, slot, recorder)).call
    assert call is not None and call.finish_reason == "client_closed"


async def test_a_rollout_that_ends_amid_a_stream_has_the_call(bus: Bus) -> None:
    node, app = TokenNode(), web.Application()
    app.router.add_post("/v1/chat/completions", node.answer)
    async with TestServer(app, handler_cancellation=True) as server:
        beat = {"state": "ready", "address": str(server.make_url("")).rstrip("/"), "model": "policy", "version": 3}
        async with bus.heartbeat("inference", "n", lambda: beat), running(bus, entrypoint="odd:leaves"):
            await TaskPublisher(bus).publish_task(task())
            (batch,) = await ended(bus)
            await node.ended.wait()
    (call,) = calls_of(batch)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0)
    assert call.finish_reason == "client_closed" and len(call.response_ids) == 12
