"""What engines say that went wrong, and who is told: the agent of its own fault, our side of the engine's."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lightningbus.bus.client import Bus
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ANSWER, ScriptedEngine, calls_of, ended, running, task
from tests.runners.test_admission import nothing, post

SENTENCE = "the schema's pattern is invalid"
DEATH = "EngineCore encountered an issue. See stack trace (above) for the root cause."
TOKEN = {
    "index": 0, "token_ids": [7], "delta": {"role": "assistant", "content": "x"},
    "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
}  # fmt: skip
HEAD = {"weight_version": 3, "id": "c", "model": "policy", "created": 1, "prompt_token_ids": [1, 2]}


def error_event(status: int, message: str = SENTENCE) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}


def token(**fields: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{**TOKEN, **fields}]}


class FailingEngine(ScriptedEngine):
    """Says these events first, one list a request; None: it closes the connection before it says anything."""

    def __init__(self, *failures: list[dict[str, Any]] | None, repeats: bool = False) -> None:
        super().__init__()
        self.failures, self.repeats = list(failures), repeats

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self.failures:
            return await super().answer(request)
        self.requests.append(await request.json())
        events = self.failures[0] if self.repeats else self.failures.pop(0)
        if events is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def serving(
    bus: Bus, *engines: FailingEngine, seconds: float = 60
) -> AsyncIterator[tuple[Slot, AttemptRecorder]]:
    """A gateway's slot, in front of these engines."""
    async with AsyncExitStack() as stack:
        for number, engine in enumerate(engines):
            await stack.enter_async_context(engine.serving(bus, id=f"n{number}"))
        fleet = await stack.enter_async_context(bus.fleet("inference"))
        gateway = await stack.enter_async_context(Gateway(fleet, nothing, 1))
        while len(fleet.members()) < len(engines):
            await fleet.wait_for_change()
        (slot,) = gateway.slots
        slot.environment()
        recorder = AttemptRecorder(task(), 1, "runner")
        slot.begin(recorder, task(), asyncio.get_running_loop().time() + seconds)
        yield slot, recorder


BODIES: dict[str, dict[str, Any]] = {
    "v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "v1/responses": {"input": "x"},
    "v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}


async def ask(slot: Slot, path: str, **fields: Any) -> tuple[int, str]:
    body = {"model": "policy", **BODIES[path], **fields}
    async with aiohttp.ClientSession() as http, asyncio.timeout(HANG_SECONDS):
        status, _, answer = await post(http, slot, path, json.dumps(body).encode())
    return status, answer.decode()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_an_engine_refuses_after_its_head_is_the_agents_error(
    bus: Bus, path: str, stream: bool
) -> None:
    engine = FailingEngine([error_event(400)])
    async with serving(bus, engine) as (slot, recorder):
        status, answer = await ask(slot, path, stream=stream)
        assert status == 400 and SENTENCE in answer and "invalid_request_error" in answer
        assert len(engine.requests) == 1 and not recorder.infra_error and recorder.calls == 0


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_has_begun_ends_with_the_error(bus: Bus, path: str) -> None:
    engine = FailingEngine([token(), error_event(400)])
    async with serving(bus, engine) as (slot, recorder):
        status, answer = await ask(slot, path, stream=True)
        assert status == 200 and SENTENCE in answer and "invalid_request_error" in answer
        assert len(engine.requests) == 1 and not recorder.infra_error


async def test_an_answer_that_cannot_be_recorded_is_refused_once(bus: Bus) -> None:
    engine = FailingEngine([token(logprobs=None, finish_reason="stop")], repeats=True)
    async with serving(bus, engine) as (slot, recorder):
        status, answer = await ask(slot, "v1/chat/completions")
        assert status == 400 and "cannot be recorded: 1 tokens came with 0 log-probabilities" in answer
        assert len(engine.requests) == 1 and not recorder.infra_error


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_answer_goes_on_as_one_that_broke_off(bus: Bus, reason: str, stream: bool) -> None:
    engine = FailingEngine([token(finish_reason=reason)])
    async with serving(bus, engine) as (slot, recorder):
        status, answer = await ask(slot, "v1/chat/completions", stream=stream)
        assert status == 200 and reason not in answer
        recorder.flush()
        (call,) = calls_of(recorder.outbox[-1])
    assert call.finish_reason == "stop" and list(memoryview(call.response_ids).cast("I")) == ANSWER
    assert engine.requests[-1]["prompt"] == [1, 2, 7], "only the rest is asked for"


@pytest.mark.parametrize("failure", [None, [error_event(500, DEATH)]])
async def test_an_engine_that_dies_does_not_end_the_call(bus: Bus, failure: Any) -> None:
    dying, healthy = FailingEngine(failure, repeats=True), FailingEngine()
    async with serving(bus, dying, healthy) as (slot, recorder):
        for _ in range(4):
            status, _ = await ask(slot, "v1/chat/completions")
            assert status == 200
        assert not recorder.infra_error and len(dying.requests) <= 4


@pytest.mark.parametrize("failure", [None, [error_event(500, DEATH)]])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_at_which_engines_die_is_tried_on_two(bus: Bus, failure: Any, stream: bool) -> None:
    engines = [FailingEngine(failure, repeats=True) for _ in range(4)]
    async with serving(bus, *engines) as (slot, recorder):
        status, answer = await ask(slot, "v1/chat/completions", stream=stream)
        assert status == 503 and "2 engines broke off at this request" in answer
        assert sum(len(engine.requests) for engine in engines) == 2
        again, _ = await ask(slot, "v1/chat/completions", stream=stream)
        assert again == 503 and sum(len(engine.requests) for engine in engines) == 2, "as clients ask again"
        assert "n" in recorder.poison_reason and recorder.infra_error
        assert (await ask(slot, "v1/chat/completions", stream=stream, seed=4))[0] == 503, "another request is asked"
        assert sum(len(engine.requests) for engine in engines) == 4


async def test_a_request_that_a_living_engine_fails_at_is_tried_twice(bus: Bus) -> None:
    engine = FailingEngine([error_event(500, "list index out of range")], repeats=True)
    async with serving(bus, engine) as (slot, recorder):
        status, answer = await ask(slot, "v1/chat/completions")
        assert status == 503 and "list index out of range" in answer
        assert len(engine.requests) == 2 and recorder.infra_error
        assert (await ask(slot, "v1/chat/completions"))[0] == 503 and not recorder.poison_reason


ASKS = """
from openai import OpenAI

def solve(task):
    OpenAI().chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
    return 1.0
"""


async def test_a_rollout_at_which_engines_die_ends_with_their_names(bus: Bus, tmp_path: Any) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    engines = [FailingEngine(None, repeats=True) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for number, engine in enumerate(engines):
            await stack.enter_async_context(engine.serving(bus, id=f"n{number}"))
        async with running(bus, entrypoint="asks:solve", working_dir=tmp_path):
            await TaskPublisher(bus).publish_task(task(deadline=40.0, max_attempts=3))
            (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "poison" and batch.attempt == 1
    assert "2 engines broke off at this request" in batch.end.error and "n" in batch.end.error
    assert sum(len(engine.requests) for engine in engines) == 2
