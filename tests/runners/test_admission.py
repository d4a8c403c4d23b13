"""How much an agent may ask of its gateway, and what becomes of those who ask badly."""

import asyncio
import gzip
import json
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.bus.client import Bus
from lightningbus.bus.security.secrets import bearer_header
from lightningbus.common import http_server
from lightningbus.common.processes.procfs import rss_bytes
from lightningbus.inference.engine.vllm_client import VllmClient
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.server import Gateway as NodeGateway
from lightningbus.runners.gateway.admission import MAX_IN_FLIGHT_BYTES, Admission, RateLimitedError, RateLimits
from lightningbus.runners.gateway.requests import MAX_REQUEST_BYTES
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ScriptedEngine, ended, running, task

OTLP = "application/x-protobuf"
KEY = "k" * 16


@asynccontextmanager
async def serving(bus: Bus, send: Any, **allowance: Any) -> AsyncIterator[list[Slot]]:
    """Two slots of a gateway, a rollout in each."""
    async with bus.fleet("inference") as fleet, Gateway(fleet, send, 2, allowance=RateLimits(**allowance)) as gateway:
        for slot in gateway.slots:
            slot.environment()
            attempt = AttemptRecorder(task(id=f"t{slot.number}"), 1, "runner")
            slot.begin(attempt, task(), asyncio.get_running_loop().time() + 60)
        yield gateway.slots


async def nothing(attempt: AttemptRecorder, seconds: float) -> None:
    """Sends nothing."""


async def post(http: aiohttp.ClientSession, slot: Slot, path: str, body: bytes, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and body of the answer."""
    url, headers = f"{slot.base_url}/{path}", {**bearer_header(slot.key), **headers}
    async with http.post(url, data=body, headers=headers) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_so_many_requests_at_once_and_no_more_of_one_slot(bus: Bus) -> None:
    let_go, sending = asyncio.Event(), asyncio.Semaphore(0)

    async def send(attempt: AttemptRecorder, seconds: float) -> None:
        sending.release()
        await let_go.wait()

    async with serving(bus, send, max_concurrent=2) as (item, other), aiohttp.ClientSession() as http:
        kept = [
            asyncio.create_task(post(http, item, "otlp/v1/traces", b"", **{"Content-Type": OTLP})) for _ in range(2)
        ]
        async with asyncio.timeout(HANG_SECONDS):
            for _ in kept:
                await sending.acquire()
        status, headers, body = await post(http, item, "v1/messages", b"{}")
        assert (status, headers["Retry-After"]) == (429, "1")
        assert json.loads(body)["error"]["type"] == "rate_limit_error", "as Anthropic's clients know it"
        async with http.get(f"{other.base_url}/v1/models", headers=bearer_header(other.key)) as answer:
            assert answer.status == 200, "the other rollout has its own"
        let_go.set()
        assert [status for status, *_ in await asyncio.gather(*kept)] == [200, 200]
        async with http.get(f"{item.base_url}/v1/models", headers=bearer_header(item.key)) as answer:
            assert answer.status == 200


async def test_so_many_requests_per_second_and_no_more(bus: Bus) -> None:
    async with serving(bus, nothing, requests_per_second=0.01) as (item, other), aiohttp.ClientSession() as http:
        assert (await post(http, item, "v1/chat/completions", b"{}"))[0] == 400
        status, headers, body = await post(http, item, "v1/chat/completions", b"{}")
        assert (status, json.loads(body)["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(headers["Retry-After"]) <= 100
        assert (await post(http, other, "v1/chat/completions", b"{}"))[0] == 400


@given(rate=st.floats(0.1, 50), pauses=st.lists(st.floats(0, 3), max_size=60))
def test_never_more_than_the_rate_and_one_second_ahead(rate: float, pauses: list[float]) -> None:
    now = 1000.0
    admission = Admission(RateLimits(requests_per_second=rate), clock=lambda: now)
    admitted = 0
    for pause in pauses:
        now += pause
        try:
            with admission.request():
                admitted += 1
        except RateLimitedError as error:
            assert error.retry_after >= 1
            earlier, now = now, now + error.retry_after
            with admission.request():
                admitted += 1
            assert now > earlier
    assert admitted <= rate * (now - 1000.0) + max(rate, 1.0) + 1e-6
    assert not admission.requests


def test_large_requests_wait_for_one_another() -> None:
    admission = Admission()
    with admission.request(MAX_IN_FLIGHT_BYTES - 10) as first:
        with admission.request(10), pytest.raises(RateLimitedError, match="bytes at once"), admission.request(1):
            pass
        first.size = 5  # it was packed, and is known now
        with admission.request(MAX_IN_FLIGHT_BYTES - 5):
            pass
    assert not admission.requests


async def test_what_is_not_there_yet_is_counted_and_another_slot_has_its_own(bus: Bus) -> None:
    async with serving(bus, nothing) as (item, other), aiohttp.ClientSession() as http:
        at = item.base_url.removeprefix("http://").partition("/")[0].rpartition(":")
        head = f"POST /slot/0/v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {item.key}\r\n"
        kept = [await asyncio.open_connection(at[0], int(at[2])) for _ in range(2)]
        kept[0][1].write(f"{head}Content-Length: {MAX_REQUEST_BYTES}\r\n\r\n".encode())
        kept[1][1].write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        async with asyncio.timeout(HANG_SECONDS):
            while len(item.admission.requests) < 2:
                await asyncio.sleep(0.01)
        assert (await post(http, item, "v1/messages", b"{}"))[0] == 429
        assert (await post(http, item, "v1/chat/completions", b"{}"))[0] == 429
        assert (await post(http, other, "v1/messages", b"{}"))[0] == 400
        async with http.get(f"{item.base_url}/v1/models", headers=bearer_header(item.key)) as answer:
            assert answer.status == 200, "what has no body is let in"
        for _, writer in kept:
            writer.close()
        async with asyncio.timeout(HANG_SECONDS):
            while item.admission.requests:
                await asyncio.sleep(0.01)
        assert (await post(http, item, "v1/messages", b"{}"))[0] == 400


async def test_so_many_connections_of_one_slot_are_kept_and_none_without_its_key(bus: Bus) -> None:
    async with serving(bus, nothing, max_concurrent=1) as slots:
        answers, writers = [], []
        for number, key in ((0, ""), (0, "0"), (0, "0"), (0, "0"), (1, "1")):
            slot = slots[number]
            at = slot.base_url.removeprefix("http://").partition("/")[0].rpartition(":")
            reader, writer = await asyncio.open_connection(at[0], int(at[2]))
            writers.append(writer)
            head = f"GET /slot/{number}/v1/models HTTP/1.1\r\nHost: x\r\nx-api-key: {key and slot.key}\r\n\r\n"
            text = b""
            async with asyncio.timeout(HANG_SECONDS):
                for request in (1, 2):
                    writer.write(head.encode())
                    while text.count(b"HTTP/1.1") < request and (data := await reader.read(65536)):
                        text += data
            answers.append((text.count(b"HTTP/1.1 200"), b"Connection: close" in text))
        assert answers == [(0, True), (2, False), (2, False), (1, True), (2, False)]
        for writer in writers:
            writer.close()


async def hears(address: str, text: bytes, seconds: float = HANG_SECONDS) -> bytes:
    """What a server says to raw bytes until it hangs up."""
    host, _, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    try:
        async with asyncio.timeout(seconds):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def turns_away(address: str, path: str, key: str) -> None:
    """A gateway answers who is slow or says too much, or hangs up."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    assert await hears(address, b"") == b"", "a head that never comes"
    assert await hears(address, f"{head}X: y".encode()) == b"", "or not to its end"
    slow = await hears(address, f"{head}Content-Length: 10\r\nConnection: close\r\n\r\n{{".encode())
    assert b" 408 " in slow and b"a request's body comes within 0.2 s" in slow
    large = await hears(address, f"{head}X: {'y' * 9000}\r\n\r\n".encode())
    assert b" 400 " in large and b"Got more than 8190 bytes" in large
    many = "".join(f"X{number}: y\r\n" for number in range(200))
    assert b"Too many headers" in await hears(address, f"{head}{many}\r\n".encode())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways that wait a second for a head, else a fifth of one."""
    for name, seconds in (
        ("HEADER_TIMEOUT_SECONDS", 1.0),
        ("BODY_TIMEOUT_SECONDS", 0.2),
        ("LINGERING_CLOSE_SECONDS", 0.2),
    ):
        monkeypatch.setattr(http_server, name, seconds)


@pytest.mark.usefixtures("impatient")
async def test_who_is_slow_or_says_too_much_to_a_runner_is_turned_away(bus: Bus) -> None:
    async with serving(bus, nothing) as (slot, _), aiohttp.ClientSession() as http:
        await turns_away(slot.base_url, "/slot/0/v1/chat/completions", slot.key)
        async with http.get(f"{slot.base_url}/v1/models", headers=bearer_header(slot.key)) as answer:
            assert answer.status == 200


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_is_slow_or_says_too_much_to_a_node_is_turned_away(
    loop: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession() as http, node(http) as gateway:
            await turns_away(gateway.address, "/v1/completions", KEY)
        monkeypatch.setattr(resource, "getrlimit", lambda which: (0, 0))
        async with aiohttp.ClientSession() as http, node(http) as gateway:
            assert b" 503 " in await hears(gateway.address, b"")

    loop(ask())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_head_that_arrived_while_the_server_was_stopped_is_answered(
    loop: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession() as http, node(http) as gateway:
            host, _, port = gateway.address.removeprefix("http://").rpartition(":")
            with socket.create_connection((host, int(port))) as client:
                while not gateway._listening._awaiting_headers:
                    await asyncio.sleep(0)
                client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                time.sleep(http_server.HEADER_TIMEOUT_SECONDS + 1)  # noqa: ASYNC251 - the process stands still
                assert b" 200 " in await asyncio.to_thread(client.recv, 65536)

    loop(ask())


@asynccontextmanager
async def node(http: aiohttp.ClientSession) -> AsyncIterator[NodeGateway]:
    """The gateway of a node that is ready."""
    model = ServedModel("policy")
    async with NodeGateway(VllmClient(http, "http://127.0.0.1:1").forward, "127.0.0.1", 0, [model], KEY) as gateway:
        model.state, model.version = "ready", 1
        yield gateway


async def test_no_more_connections_than_it_can_hold(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4, 4))
    async with serving(bus, nothing) as (slot, _):
        monkeypatch.undo()
        at = slot.base_url.removeprefix("http://").partition("/")[0].rpartition(":")
        kept = [await asyncio.open_connection(at[0], int(at[2])) for _ in range(2)]
        assert b" 503 " in await hears(slot.base_url, b"")
        for _, writer in kept:
            writer.close()


async def test_what_is_small_when_packed_is_measured_unpacked(bus: Bus) -> None:
    bomb = gzip.compress(bytes(6 * MAX_REQUEST_BYTES))
    async with serving(bus, nothing) as (slot, _), aiohttp.ClientSession() as http:
        before = resident_now()
        for path in ("v1/chat/completions", "otlp/v1/traces"):
            status, *_ = await post(http, slot, path, bomb, **{"Content-Encoding": "gzip", "Content-Type": OTLP})
            assert status == 413
        assert resident_now() - before < 4 * MAX_REQUEST_BYTES


def resident_now() -> int:
    """Bytes this process holds."""
    return rss_bytes(os.getpid())


async def test_an_attack_on_the_gateway_is_its_own_rollouts_affair(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="hostile:attacks_the_gateway", concurrency=2, max_concurrent_requests=8):
        await TaskPublisher(bus).publish_task(task(id="bad", input={"victim": "good.0"}))
        await TaskPublisher(bus).publish_task(task(id="good", input={"calm": True}))
        by_name = {batch.task_id: batch for batch in await ended(bus, 2)}
    bad, good = by_name["bad"], by_name["good"]
    assert bad.end is not None and (bad.end.outcome, bad.end.reward) == ("ok", 1.0), bad.end
    assert good.end is not None and (good.end.outcome, good.end.reward) == ("ok", 0.25), good.end
    assert "stolen" not in {span.name for span in good.spans}
    (forged,) = [span for span in bad.spans if span.name == "stolen"]
    assert forged.trace_id == bad.spans[-1].trace_id != good.spans[-1].trace_id


async def test_answers_count_as_requests_do(bus: Bus, engine: ScriptedEngine) -> None:
    """An engine samples them at once, whether one request asks for them or several."""
    async with serving(bus, nothing, max_concurrent=4) as (slot, _), aiohttp.ClientSession() as http:
        body = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "n": 1000}
        status, _, answer = await post(http, slot, "v1/chat/completions", json.dumps(body).encode())
        assert status == 400
        assert "1000 answers at once; max_concurrent_requests of the runner allows 4" in answer.decode()
        prompts = {"model": "policy", "prompt": ["x", "y", "z"], "n": 2}
        status, _, answer = await post(http, slot, "v1/completions", json.dumps(prompts).encode())
        assert status == 400 and b"6 answers" in answer
        assert not engine.requests


def test_an_agent_waits_for_its_own_answers() -> None:
    admission = Admission(RateLimits(max_concurrent=4))
    with admission.request() as first, admission.request() as second:
        admission.admit_choices(first, 3)
        with pytest.raises(RateLimitedError, match="4 answers at once"):
            admission.admit_choices(second, 2)
        admission.admit_choices(second, 1)
    with admission.request() as third:
        admission.admit_choices(third, 4)
