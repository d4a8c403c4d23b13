"""Routes at which clients of the vendors ask by default, and what they are told where nobody answers."""

import json
from typing import Any

import aiohttp
import openai
import pytest

from lightningbus.bus.client import Bus
from lightningbus.common.backoff import RetryPolicy
from lightningbus.runners.gateway.external import external_endpoints
from tests.runners.chat_templates import STRICT, RenderingEngine
from tests.runners.conftest import ScriptedEngine
from tests.runners.external import KEY, Office
from tests.runners.external import opened as opened_office
from tests.runners.test_dialects import SAYING, Desk, opened
from tests.runners.test_otlp import telemetry

MESSAGE = {"model": "policy", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}


async def ask(desk: Desk | Office, path: str, method: str = "POST", **options: Any) -> tuple[int, Any]:
    url, key = (desk.url, desk.key) if isinstance(desk, Desk) else (desk.slot.base_url, desk.slot.key)
    async with (
        aiohttp.ClientSession(headers={"x-api-key": key}) as session,
        session.request(method, f"{url}{path}", **options) as response,
    ):
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def test_messages_are_served_without_a_version(bus: Bus, engine: ScriptedEngine) -> None:
    engine.script = SAYING
    async with opened(bus) as desk:
        status, message = await ask(desk, "/messages", json=MESSAGE)
        assert (status, message["content"][0]["text"]) == (200, "fourteen")
        status, error = await ask(desk, "/messages", json={**MESSAGE, "messages": "x"})
        assert (status, error["type"]) == (400, "error")
        status, error = await ask(desk, "/messages/count_tokens", json=MESSAGE)
        assert (status, error["type"]) == (400, "error"), "the scripted engine renders no prompt"


async def test_a_model_says_how_long_its_context_is(bus: Bus) -> None:
    async with RenderingEngine(STRICT, max_model_len=24_000).serving(bus), opened(bus) as desk:
        _, models = await ask(desk, "/v1/models", "GET")
        _, model = await ask(desk, "/v1/models/policy:writer", "GET")
    (card,) = models["data"]
    assert (card["id"], card["max_model_len"], card["max_input_tokens"]) == ("policy", 24_000, 24_000)
    assert (model["id"], model["max_model_len"]) == ("policy:writer", 24_000)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/v1/responses/compact", "send the whole input"),
        ("POST", "/v1/conversations", "SQLiteSession of openai-agents"),
        ("GET", "/v1/conversations/conv_1/items", "SQLiteSession of openai-agents"),
        ("POST", "/v1/embeddings", "name model 'm' in `endpoints` of the runner"),
        ("POST", "/v1/moderations", "name model 'm' in `endpoints` of the runner"),
    ],
)
async def test_a_route_that_nobody_answers_says_what_to_use(bus: Bus, method: str, path: str, words: str) -> None:
    async with ScriptedEngine().serving(bus), opened(bus) as desk:
        status, answer = await ask(desk, path, method, json={"model": "m", "input": "x"})
    assert status == 404 and words in answer["error"]["message"]


async def test_spans_are_taken_at_the_bare_address(bus: Bus, engine: ScriptedEngine) -> None:
    async with opened(bus) as desk:
        headers = {"Content-Type": "application/x-protobuf"}
        status, _ = await ask(desk, "/otlp", data=telemetry().SerializeToString(), headers=headers)
        assert status == 200 and [span.name for span in desk.spans] == ["tool"]


EMBEDDED = {"object": "list", "model": "e-1", "data": [{"object": "embedding", "index": 0, "embedding": "AACAPw=="}]}


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_endpoints, "RETRY_POLICY", RetryPolicy(0.001, 0.01))


async def test_embeddings_are_answered_by_an_endpoint_and_on_record() -> None:
    async with opened_office() as office:
        office.endpoint.faults = ["503", ""]
        office.endpoint.embedded = {**EMBEDDED, "usage": {"prompt_tokens": 7, "total_tokens": 7}}
        answer = await office.openai.embeddings.create(model="judge", input="x")  # in base64, by default
        assert answer.data[0].embedding == [1.0]
        assert [request["model"] for request in office.endpoint.requests] == ["gpt-9", "gpt-9"]
        assert office.endpoint.headers[-1]["Authorization"] == f"Bearer {KEY}"
        (span,) = office.spans
        office.endpoint.faults = ["400"]
        with pytest.raises(openai.BadRequestError, match=r"no, \*\*\*"):
            await office.openai.embeddings.create(model="judge", input="x")
        status, _ = await ask(office, "/v1/moderations", json={"model": "judge", "input": "x"})
        assert status == 200
        office.recorder.finish("ok", None, "", "")
        (*_, batch) = office.recorder.outbox
        assert batch.end is not None
        external = batch.end.usage.external_models
    assert (span.name, span.attributes["gen_ai.operation.name"]) == ("embeddings judge", "embeddings")
    assert (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.response.model"]) == (7, "e-1")
    assert external["judge"].num_calls == 2 and external["judge"].prompt_tokens == 14
