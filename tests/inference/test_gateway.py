"""The node's gateway in front of a scripted vLLM: which version a token gets, and who is turned away."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.bus.client import Bus
from lightningbus.bus.connection import Connection
from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.fleet.node_state import TRANSITIONS, NodeEvent, State, is_ready, next_state
from lightningbus.bus.security.secrets import bearer_header, has_bearer
from lightningbus.common.observability.metric_registry import REGISTRIES
from lightningbus.inference.engine.vllm_client import VllmClient
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.server import PREFERRED_HEADER, VERSION_HEADER, Gateway
from lightningbus.inference.gateway.version_stamp import add_cache_salt, stamp_event
from lightningbus.inference.node import run
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.version_registry import LoadedVersions
from tests.polling import HANG_SECONDS


class ScriptedVllm:
    """Streams one event per turn of ``gate``, so that a test decides what comes before a swap and what after."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(0)
        self.bodies: list[dict[str, object]] = []
        self.headers: Mapping[str, str] = {}
        self.events = 3
        self.breaks = False

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers = request.headers
        if not body.get("stream"):
            return web.json_response({"error": "not a stream"}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(self.events):
            await self.gate.acquire()
            fields = {"n": number, **({"model": body["model"]} if "model" in body else {})}
            event = f"data: {json.dumps(fields, separators=(',', ':'))}\n\n".encode()
            await response.write(event[:5])
            await response.write(event[5:])
        if self.breaks:
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def vllm() -> AsyncIterator[ScriptedVllm]:
    """A scripted engine."""
    yield ScriptedVllm()


def answering(text: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text)

    return answer


@asynccontextmanager
async def serving(
    vllm: ScriptedVllm, versions: LoadedVersions | None = None, **door: Any
) -> AsyncIterator[tuple[Gateway, ServedModel, aiohttp.ClientSession]]:
    app = web.Application()
    app.router.add_post("/v1/completions", vllm.completions)
    app.router.add_get("/metrics", answering("vllm:num_requests_running 1.0\n"))
    app.router.add_post("/pause", answering("never from outside"))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as http:
        model = ServedModel("policy", versions)
        async with Gateway(VllmClient(http, engine).forward, "127.0.0.1", 0, [model], **door) as gateway:
            model.state, model.version = "ready", 3
            yield gateway, model, http
        await runner.cleanup()


async def test_tokens_before_a_swap_are_the_old_versions_and_after_it_the_new(vllm: ScriptedVllm) -> None:
    async with serving(vllm) as (gateway, model, http):
        body = {"prompt": "x", "stream": True}
        async with http.post(gateway.address + "/v1/completions", json=body) as answer:
            vllm.gate.release()
            first = await answer.content.readuntil(b"\n\n")
            model.version = 4
            vllm.gate.release()
            second = await answer.content.readuntil(b"\n\n")
            vllm.gate.release()
            rest = await answer.content.read()
    assert json.loads(first[6:]) == {"weight_version": 3, "engine_id": "", "n": 0}
    assert json.loads(second[6:]) == {"weight_version": 4, "engine_id": "", "n": 1}
    assert rest.endswith(b"data: [DONE]\n\n")
    assert vllm.bodies == [{**body, "cache_salt": "v3"}]
    assert gateway.num_in_flight == 0


async def test_a_call_ends_on_the_adapters_it_began_with(vllm: ScriptedVllm) -> None:
    residents = LoadedVersions("policy", 1)
    residents.add(3)
    async with serving(vllm, versions=residents) as (gateway, model, http):
        url, body = gateway.address + "/v1/completions", {"model": "policy", "stream": True}
        async with http.post(url, json=body) as old:
            residents.add(4)
            model.version = 4
            async with http.post(url, json=body, headers={VERSION_HEADER: "3"}) as answer:
                assert answer.status == 409 and "serves version 4, not 3" in await answer.text()
            async with http.post(url, json=body, headers={PREFERRED_HEADER: "3"}) as new:
                for _ in range(2 * vllm.events):
                    vllm.gate.release()
                assert residents.loaded == (3, 4) and residents.evictable() == ()
                answers = [await answer.text() for answer in (old, new)]
    events = [[json.loads(line[6:]) for line in answer.split("\n\n") if "{" in line] for answer in answers]
    assert [[event["weight_version"] for event in of] for of in events] == [[3] * 3, [4] * 3]
    assert {event["model"] for of in events for event in of} == {"policy"}, "as the agent asked for it"
    assert [body["model"] for body in vllm.bodies] == ["policy@3", "policy@4"]
    assert residents.evictable() == (3,)


async def test_a_gateway_is_emptied_of_its_calls_and_lets_none_in(vllm: ScriptedVllm) -> None:
    async with serving(vllm) as (gateway, model, http):
        url = gateway.address + "/v1/completions"
        async with http.post(url, json={"stream": True}) as answer:
            emptying = asyncio.create_task(closed_for(model))
            await asyncio.sleep(0)
            async with http.post(url, json={"stream": True}) as refused:
                assert refused.status == 503 and "taking weights" in await refused.text()
            assert not emptying.done()
            for _ in range(vllm.events):
                vllm.gate.release()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(emptying, HANG_SECONDS) == 0
        async with http.post(url, json={"stream": False}) as answer:
            assert answer.status == 400, "the engine is asked again"


async def closed_for(model: ServedModel) -> int:
    async with model.drained():
        return model.num_in_flight


async def test_who_is_being_answered_is_told_that_the_rest_comes_from_elsewhere(vllm: ScriptedVllm) -> None:
    """For a version that is not released: what comes later would be its tokens."""
    async with serving(vllm) as (gateway, model, http):
        await asyncio.wait_for(model.abort_in_flight(), HANG_SECONDS)  # of nothing
        async with http.post(gateway.address + "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
            vllm.gate.release()
            assert await answer.content.readuntil(b"\n\n")
            model.state = "canary"
            await asyncio.wait_for(model.abort_in_flight(), HANG_SECONDS)
            with pytest.raises(aiohttp.ClientError):
                await answer.content.read()
        assert gateway.num_in_flight == 0
        async with http.post(gateway.address + "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
            assert answer.status == 503 and "canary" in await answer.text()
        model.state = "ready"
        async with http.post(gateway.address + "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
            for _ in range(5):  # two are for the answer nobody reads any more
                vllm.gate.release()
            assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_what_vllm_measures_is_passed_on_and_answers_are_counted(vllm: ScriptedVllm) -> None:
    async with serving(vllm) as (gateway, _, http):
        before = refusals()
        async with http.get(gateway.address + "/metrics") as answer:
            assert (answer.status, await answer.text()) == (200, "vllm:num_requests_running 1.0\n")
        async with http.post(f"{gateway.address}/v1/completions", json={}, headers={VERSION_HEADER: "2"}) as answer:
            assert answer.status == 409
        assert refusals() == before + 1


def refusals() -> float:
    """Requests answered by 409 so far, in this process."""
    return REGISTRIES["inference"].get_sample_value("lightningbus_inference_requests_total", {"status": "409"}) or 0.0


async def test_who_is_turned_away(vllm: ScriptedVllm) -> None:
    async with serving(vllm) as (gateway, model, http):
        address = gateway.address + "/v1/completions"
        async with http.post(address, json={"stream": True}, headers={VERSION_HEADER: "2"}) as answer:
            assert answer.status == 409 and "serves version 3, not 2" in await answer.text()
        for state in ("starting", "awaiting_weights", "draining", "dead"):
            model.state = state
            async with http.post(address, json={"stream": True}) as answer:
                assert answer.status == 503 and state in await answer.text() and answer.headers["Retry-After"]
            async with http.get(gateway.address + "/health") as answer:
                assert answer.status == 503
        assert vllm.bodies == []
        model.state = "ready"
        async with http.get(gateway.address + "/health") as answer:
            assert await answer.json() == {"state": "ready", "version": 3}
        async with http.post(address, json={"prompt": "no stream"}) as answer:
            assert answer.status == 400, "what the engine says is passed on"
        async with http.post(gateway.address + "/pause") as answer:
            assert answer.status == 404, "the engine's control routes are out of reach"


KEY = "a-inference-api-key-of-a-test"


@pytest.mark.parametrize(
    "text",
    ["", KEY, "Bearer", "Bearer ", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Bearer {KEY.upper()}"],
)
async def test_without_the_inference_api_key_nothing_is_answered(vllm: ScriptedVllm, text: str) -> None:
    """On no route, and before a word of the body reaches the engine; only the health has no secrets."""
    async with serving(vllm, inference_api_key=KEY) as (gateway, _, http):
        headers = {"Authorization": text} if text else {}
        for method, route in (
            ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("GET", "/v1/models"),
        ):  # fmt: skip
            async with http.request(method, gateway.address + route, data=b"{}", headers=headers) as answer:
                error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (401, 401)
            assert "requires the inference API key" in error["message"] and KEY not in error["message"]
        async with http.get(gateway.address + "/health") as answer:
            assert answer.status == 200
    assert vllm.bodies == []


def test_a_header_that_is_no_text_is_no_key() -> None:
    assert not has_bearer(KEY, "Bearer \udcff") and has_bearer(KEY, f"bearer  {KEY} ")


async def test_with_the_inference_api_key_the_engine_answers_and_is_not_told_it(vllm: ScriptedVllm) -> None:
    async with serving(vllm, inference_api_key=KEY) as (gateway, _, http):
        for _ in range(vllm.events):
            vllm.gate.release()
        address = gateway.address + "/v1/completions"
        async with http.post(address, json={"stream": True}, headers=bearer_header(KEY)) as answer:
            assert answer.status == 200 and (await answer.read()).endswith(b"data: [DONE]\n\n")
    assert "Authorization" not in vllm.headers


async def test_too_many_and_too_much_are_one_sentence(vllm: ScriptedVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightningbus.inference.gateway.server.MAX_REQUEST_BYTES", 1000)
    async with serving(vllm, max_requests=1) as (gateway, _, http):
        address = gateway.address + "/v1/completions"
        async with http.post(address, json={"stream": True, "prompt": "x" * 1000}) as answer:
            assert (answer.status, (await answer.json())["error"]["message"]) == (413, "a request may have 1000 bytes")
        async with http.post(address, json={"stream": True}) as first:
            async with http.post(address, json={"stream": True}) as answer:
                assert answer.status == 429 and answer.headers["Retry-After"] == "1"
            for _ in range(vllm.events):
                vllm.gate.release()
            assert (await first.read()).endswith(b"data: [DONE]\n\n")
        async with http.get(gateway.address + "/v1/models") as answer:
            assert answer.status == 404, "there is room again, for the engine to say that it has no such route"


async def test_beyond_loopback_a_node_has_a_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = InferenceSettings(model_path=tmp_path, host="0.0.0.0")
    bus = Bus(Connection("nats://127.0.0.1", None))
    with pytest.raises(
        CredentialsError, match=r"host: 0\.0\.0\.0 is reached from other machines.*set inference_api_key_file"
    ):
        await run(bus, settings, asyncio.Event())
    for content, sentence in (
        ("short", "holds no inference API key"),
        ("two words of a key", "holds no inference API key"),
    ):
        (tmp_path / "key").write_text(content)
        with pytest.raises(CredentialsError, match=sentence) as caught:
            await run(bus, settings.model_copy(update={"inference_api_key_file": tmp_path / "key"}), asyncio.Event())
        assert content not in str(caught.value)


async def test_a_stream_the_engine_breaks_off_is_broken_off_here(vllm: ScriptedVllm) -> None:
    vllm.breaks = True
    async with serving(vllm) as (gateway, _, http):
        for _ in range(vllm.events):
            vllm.gate.release()
        with pytest.raises(aiohttp.ClientError):
            async with http.post(gateway.address + "/v1/completions", json={"stream": True}) as answer:
                await answer.read()


async def test_an_engine_that_is_gone_is_not_ready(vllm: ScriptedVllm) -> None:
    model = ServedModel("policy")
    async with (
        aiohttp.ClientSession() as http,
        Gateway(VllmClient(http, "http://127.0.0.1:1").forward, "127.0.0.1", 0, [model]) as gateway,
    ):
        model.state, model.version = "ready", 1
        async with http.post(gateway.address + "/v1/completions", json={"stream": True}) as answer:
            assert answer.status == 503


@given(st.dictionaries(st.text(), st.integers() | st.text(), min_size=1), st.integers(0, 2**40))
def test_marking_and_salting_change_nothing_else(body: dict[str, object], version: int) -> None:
    event = b"data: " + json.dumps(body).encode()
    stamps = {"weight_version": version, "engine_id": "n:1"}
    assert json.loads(stamp_event(event, version, "n:1")[6:]) == {**stamps, **body}
    assert json.loads(add_cache_salt(json.dumps(body).encode() + b" \n", version)) == {
        **body,
        "cache_salt": f"v{version}",
    }
    assert stamp_event(b"data: [DONE]", version) == b"data: [DONE]"
    assert stamp_event(b": a comment", version) == b": a comment"
    named = add_cache_salt(json.dumps({**body, "model": "policy"}).encode(), version, "policy@1")
    assert json.loads(named) == {**body, "model": "policy@1", "cache_salt": f"v{version}"}
    text = json.dumps({"model": "m@1", "text": '"model":"m@1"'}, separators=(",", ":")).encode()
    assert json.loads(stamp_event(b"data: " + text, 1, "n:1", "m@1", "m")[6:]) == {
        "weight_version": 1, "engine_id": "n:1", "model": "m", "text": '"model":"m@1"'
    }  # fmt: skip
    assert add_cache_salt(b"{}", version) == b"{}" and add_cache_salt(b"[1]", version) == b"[1]"


@given(st.lists(st.sampled_from(["engine_up", "weights_applied", "engine_exited", "stop"])))
def test_a_node_serves_only_after_its_engine_took_weights(events: list[NodeEvent]) -> None:
    state: State = "starting"
    holds = False
    for event in events:
        before, state = state, next_state(state, event)
        if event == "weights_applied":
            holds = holds or before in ("starting", "awaiting_weights", "ready")  # a frozen node starts with them
        elif state != before:
            holds = holds and state == "ready"
        assert not is_ready(state) or holds
        assert before != "draining" or state == "draining"


def test_every_state_can_be_stopped() -> None:
    states = {state for state, _ in TRANSITIONS}
    assert all(next_state(state, "stop") == "draining" for state in states)
