"""An answer reaches the agent before it is recorded, and its connection is used again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lightningbus.bus.security.secrets import bearer_header
from lightningbus.runners.gateway.engines import connection_reuse
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.fleet import Heartbeat
from tests.polling import HANG_SECONDS
from tests.runners.conftest import task


class Node:
    """Answers a call in one event, and ends the answer as the test says."""

    def __init__(self, text: str = "x") -> None:
        self._text = text
        self.connections: list[object] = []
        self.may_end = asyncio.Event()
        self.ended = asyncio.Event()
        """An answer was ended, or its client has gone."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.connections.append(request.transport)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        fields = {"index": 0, "token_ids": [7], "delta": {"content": self._text}, "finish_reason": "stop"}
        fields["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}]}
        event = {"weight_version": 3, "id": "c", "choices": [fields], "prompt_token_ids": [1, 2]}
        await response.write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
        try:
            await self.may_end.wait()
            await response.write_eof()
        finally:
            self.ended.set()
        return response


class OneNode:
    """A fleet of one node that is ready."""

    def __init__(self, address: str) -> None:
        self._beat = Heartbeat(
            role="inference", id="n", state="ready", address=address, model="policy", version=3, sent_at_ns=1
        )

    def members(self) -> list[Heartbeat]:
        return [self._beat]

    def suspect(self, role: str, id: str) -> None:
        raise AssertionError("the node answers")

    async def wait_for_change(self) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(node: Node, send: Any) -> AsyncIterator[tuple[Gateway, Slot, AttemptRecorder]]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", node.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with Gateway(OneNode(address), send, 1) as gateway:
            slot, recorder = gateway.slots[0], AttemptRecorder(task(), 1, "runner")
            slot.environment()
            slot.begin(recorder, task(), asyncio.get_running_loop().time() + 60)
            yield gateway, slot, recorder
    finally:
        node.may_end.set()
        await runner.cleanup()


async def ask(http: aiohttp.ClientSession, slot: Slot, stream: bool = False) -> bytes:
    body = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    url = f"{slot.base_url}/v1/chat/completions"
    async with http.post(url, json=body, headers=bearer_header(slot.key)) as answer:
        assert answer.status == 200
        return await answer.read()


async def sent(recorder: AttemptRecorder, seconds: float) -> None:
    recorder.outbox.clear()


async def test_a_connection_whose_answer_ends_after_its_last_event_serves_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_reuse, "END_SECONDS", HANG_SECONDS)
    node = Node()
    async with serving(node, sent) as (gateway, slot, _), aiohttp.ClientSession() as http:
        await ask(http, slot)  # answered while the node has not ended its answer
        (reading,) = gateway.upstream.connections.reading
        node.may_end.set()
        await reading
        await ask(http, slot)
    assert node.connections[0] is node.connections[1]


async def test_a_connection_whose_answer_does_not_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_reuse, "END_SECONDS", 0.01)
    node = Node()
    async with serving(node, sent) as (_, slot, _), aiohttp.ClientSession() as http:
        await ask(http, slot)
        async with asyncio.timeout(HANG_SECONDS):
            await node.ended.wait()
        assert not node.may_end.is_set(), "the node's handler was cancelled: its client has gone"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_does_not_wait_for_its_own_call_to_be_stored(stream: bool) -> None:
    node, may_store, stored = Node(), asyncio.Event(), asyncio.Event()
    node.may_end.set()

    async def send(recorder: AttemptRecorder, seconds: float) -> None:
        await may_store.wait()
        await sent(recorder, seconds)
        stored.set()

    async with serving(node, send) as (_, slot, recorder), aiohttp.ClientSession() as http:
        record, num_recorded = recorder.add_call, 0

        def add_call(*arguments: Any, **fields: Any) -> None:
            nonlocal num_recorded
            record(*arguments, **fields)
            recorder.flush()  # as a large call does
            num_recorded += 1

        recorder.add_call = add_call  # type: ignore[method-assign]
        await ask(http, slot, stream)
        assert num_recorded == 1 and not stored.is_set(), "recorded by the time the agent has it, not stored"
        second = asyncio.create_task(ask(http, slot, stream))
        done, _ = await asyncio.wait({second}, timeout=0.2)
        assert not done, "the next call waits while the bus takes nothing"
        may_store.set()
        await second
        assert num_recorded == 2


async def test_an_answer_that_the_agent_does_not_read_is_recorded_all_the_same() -> None:
    node = Node(text="x" * 12_000_000)
    node.may_end.set()
    recorded = asyncio.Event()
    async with serving(node, sent) as (_, slot, recorder):
        record = recorder.add_call

        def add_call(*arguments: Any, **fields: Any) -> None:
            record(*arguments, **fields)
            recorded.set()

        recorder.add_call = add_call  # type: ignore[method-assign]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(slot.base_url.split(":")[2].split("/")[0]))
        body = b'{"model": "policy", "messages": []}'
        head = f"POST /slot/0/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {slot.key}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(HANG_SECONDS):
            await recorded.wait()
        assert slot.admission.requests, "the answer is still being sent"
        writer.close()
        del reader
