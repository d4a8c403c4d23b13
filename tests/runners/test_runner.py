"""A runner against a real bus, with a scripted engine that speaks vLLM's protocol: faults on demand."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bus import STORE_SPANS, Bus, runner_tasks
from runners import runner
from runners.host import CannotStart
from runners.settings import RunnerSettings
from schemas.events import SpanBatch, Task

AGENTS = Path(__file__).resolve().parents[1] / "agents"


class ScriptedEngine:
    """Answers ``/v1/chat/completions`` as an inference node does; ``faults`` are played first, one per request."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.address = ""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        fault = self.faults.pop(0) if self.faults else ""
        if fault.isdecimal():
            return web.json_response({"error": {"message": "no"}}, status=int(fault))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for place, token in enumerate((7, 8)):
            said = {
                "index": 0,
                "delta": {"content": "x"},
                "token_ids": [token],
                "finish_reason": "stop" if place else None,
            }
            said["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}]}
            body = {"weight_version": 3, "id": "c", "model": "policy", "created": 1, "choices": [said]}
            body["prompt_token_ids"] = None if place else [1, 2]
            await response.write(f"data: {json.dumps(body)}\n\n".encode())
            if fault == "break":
                assert request.transport is not None
                request.transport.close()
                return response
        await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def serving(self, bus: Bus) -> AsyncIterator["ScriptedEngine"]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        server = web.AppRunner(app)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        self.address = site.name if ":0" not in site.name else f"http://127.0.0.1:{server.addresses[0][1]}"
        alive = {"state": "ready", "address": self.address, "model": "policy", "version": 3}
        async with bus.beat("inference", "scripted", lambda: alive):
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
    checked = RunnerSettings.model_validate({"concurrency": 1, "path": AGENTS, "drain_seconds": 5, **settings})
    work = asyncio.create_task(runner.run(bus, checked, stop))
    try:
        yield stop
    finally:
        stop.set()
        await work


async def ended(bus: Bus, count: int = 1) -> list[SpanBatch]:
    """The next span batches that end an attempt."""
    found = []
    async with asyncio.timeout(60), bus.pull(STORE_SPANS, slots=8) as puller:
        async for delivery in puller:
            event = delivery.event()
            await delivery.ack()
            if isinstance(event, SpanBatch) and event.end is not None:
                found.append(event)
            if len(found) == count:
                return found
    raise AssertionError("the pull loop ended")


def task(**changes: Any) -> Task:
    return Task(
        **{"id": "t", "run": "run", "agent": "default", "input": {}, "mode": "eval", "deadline": 20.0, **changes}
    )


@pytest.mark.parametrize("fault", ["409", "429", "502", "503", "504", "break"])
async def test_a_call_is_held_and_asked_again_and_the_agent_never_notices(
    bus: Bus, engine: ScriptedEngine, fault: str
) -> None:
    engine.faults = [fault, fault]
    async with running(bus, agent="plain:asks"):
        await bus.publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.error) == ("ok", "")
    calls = [span.call for span in batch.spans if span.call is not None]
    assert len(engine.requests) == 3 and len(calls) == 1, "what was broken off is not recorded"
    assert calls[0].response_ids == b"\7\0\0\0\x08\0\0\0"
    assert all(request["logprobs"] is True and request["return_token_ids"] for request in engine.requests)


async def test_what_the_engine_refuses_the_agent_is_told(bus: Bus, engine: ScriptedEngine) -> None:
    engine.faults = ["400"]
    async with running(bus, agent="plain:asks"):
        await bus.publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "agent_error"
    assert "BadRequestError" in batch.end.error
    assert len(engine.requests) == 1


async def test_no_node_until_the_deadline_is_infra_and_tried_again(bus: Bus) -> None:
    async with running(bus, agent="plain:asks"):
        await bus.publish_task(task(deadline=0.5, max_attempts=2))
        (batch,) = await ended(bus)
    assert batch.attempt == 2
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("infra", None)
    assert "no inference node is ready until the rollout's deadline" in batch.end.error or "no model" in batch.end.error


async def test_the_sampling_of_a_task_wins_over_the_agents(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, agent="plain:asks"):
        await bus.publish_task(task(sampling={"temperature": 0.0, "seed": 7}))
        (batch,) = await ended(bus)
    assert engine.requests[0]["temperature"] == 0.0 and engine.requests[0]["seed"] == 7
    (call,) = [span.call for span in batch.spans if span.call is not None]
    assert call.sampling["temperature"] == 0.0


async def test_an_agent_is_told_nothing_of_ours_and_keeps_its_client(
    bus: Bus, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNINGBUS_BUS", "nats://user:secret@127.0.0.1:1")
    async with running(bus, agent="plain:keeps_its_client"):
        for number in range(3):
            await bus.publish_task(task(id=f"t{number}"))
        batches = await ended(bus, 3)
    assert [batch.end.outcome for batch in batches if batch.end] == ["ok"] * 3, [b.end for b in batches]


async def test_an_async_agent_a_reward_function_and_a_command(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, agent="plain:asks_async", reward="plain:half", name="one"):
        await bus.publish_task(task(agent="one", input={"n": 1}))
        (batch,) = await ended(bus)
        assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 0.5), batch.end
    async with running(bus, command=[sys.executable, "program.py"], name="two"):
        await bus.publish_task(task(id="u", agent="two", input={"n": 3}))
        (batch,) = await ended(bus)
        assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 3.0), batch.end


async def test_a_key_of_another_process_is_refused(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, agent="plain:asks_with_a_wrong_key"):
        await bus.publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and "AuthenticationError" in batch.end.error
    assert engine.requests == []


async def test_an_agent_that_dies_is_an_agent_error_and_the_next_rollout_works(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(bus, agent="plain:dies_on_demand"):
        await bus.publish_task(task(id="a", input={"die": True}))
        await bus.publish_task(task(id="b", input={}))
        batches = await ended(bus, 2)
    outcomes = {batch.task: batch.end.outcome for batch in batches if batch.end}
    assert outcomes == {"a": "agent_error", "b": "ok"}


async def test_stopping_gives_back_what_is_not_finished(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, agent="plain:sleeps", drain_seconds=0) as stop:
        await bus.publish_task(task())
        info = bus.js.consumer_info
        async with asyncio.timeout(20):
            while (await info("TASKS", "runner-default")).num_ack_pending == 0:
                await asyncio.sleep(0.02)
        stop.set()
    async with running(bus, agent="plain:asks"):
        (batch,) = await ended(bus)
    assert batch.attempt == 2 and batch.end is not None and batch.end.outcome == "ok"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"agent": "nothing:solve"}, "No module named 'nothing'"),
        ({"agent": "plain:nothing"}, "has no attribute 'nothing'"),
        ({"agent": "plain:asks", "python": "/no/python"}, "/no/python cannot be started"),
        ({"agent": "plain:asks", "path": "/no/where"}, "cannot be started in /no/where"),
    ],
)
async def test_an_agent_that_cannot_start_is_one_sentence(bus: Bus, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CannotStart, match=sentence):
        async with asyncio.timeout(30):
            checked = RunnerSettings.model_validate({"path": AGENTS, **settings})
            await runner.run(bus, checked, asyncio.Event())


async def test_a_runner_killed_gives_its_task_to_another(bus: Bus, nats_url: str, engine: ScriptedEngine) -> None:
    await bus.ensure(runner_tasks("default", 1.0))
    command = [sys.executable, "-m", "lightningbus", "runner", "--bus", nats_url, "--agent", "plain:sleeps"]
    process = await asyncio.create_subprocess_exec(
        *command, "--path", str(AGENTS), "-n", "1", start_new_session=True, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    while b"takes tasks" not in await process.stderr.readline():
        assert process.returncode is None
    await bus.publish_task(task())
    async with asyncio.timeout(20):
        while (await bus.js.consumer_info("TASKS", "runner-default")).num_ack_pending == 0:
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with running(bus, agent="plain:asks", ack_wait=1.0):
        (batch,) = await ended(bus)
    assert batch.attempt == 2 and batch.end is not None and batch.end.outcome == "ok"
