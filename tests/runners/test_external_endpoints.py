"""An OpenAI-compatible endpoint outside the fleet answers a model: over real HTTP, by the vendors' own clients."""

import asyncio
import json
import logging
import re
from typing import Any

import openai
import pytest
from pydantic import ValidationError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import CredentialsError
from lightningbus.common.backoff import RetryPolicy
from lightningbus.learner.transitions.prefix_tree import find_parents
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.runners import runner
from lightningbus.runners.gateway.engines import connection_reuse
from lightningbus.runners.gateway.external import external_endpoints
from lightningbus.runners.gateway.external.external_endpoints import ExternalEndpoints
from lightningbus.runners.settings import EndpointSettings, RunnerSettings
from lightningbus.schemas.codec import encode
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import AGENTS, ScriptedEngine, calls_of, ended, running, task
from tests.runners.external import KEY, USAGE, Office, opened, serving_endpoint

MESSAGES: list[Any] = [{"role": "user", "content": "add"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_endpoints, "RETRY_POLICY", RetryPolicy(0.001, 0.01))


async def ask(office: Office, model: str = "judge", **fields: Any) -> Any:
    return await office.openai.chat.completions.create(model=model, messages=MESSAGES, **fields)


async def test_a_chat_is_passed_on_as_it_is_and_recorded_as_text_and_usage() -> None:
    async with opened(sampling_params={"seed": 7}) as office:
        answer = await ask(
            office, "policy:checker", tools=TOOLS, temperature=0.5, extra_body={"return_token_ids": True}
        )
        (request,), (headers,) = office.endpoint.requests, office.endpoint.headers
        (span,) = office.spans
    assert request == {"messages": MESSAGES, "model": "gpt-9", "tools": TOOLS, "temperature": 0.5, "seed": 7}
    assert not [name for name in headers if name.lower().startswith(("x-lightningbus", "traceparent"))]
    assert answer.system_fingerprint == "fp_1" and answer.choices[0].message.tool_calls[0].function.name == "add"
    call = span.call
    assert call is not None and (call.model, call.role, call.node) == ("judge", "checker", "")
    assert (call.prompt_ids, call.response_ids, call.logprobs, call.weight_versions) == (b"", b"", b"", ())
    assert '"content": "It adds."' in call.response and '"messages"' in call.request
    assert call.sampling_params == {"temperature": 0.5, "seed": 7} and call.finish_reason == "tool_calls"
    fields = span.attributes
    assert (fields["gen_ai.usage.input_tokens"], fields["gen_ai.usage.output_tokens"]) == (11, 3)
    assert (fields["gen_ai.request.model"], fields["gen_ai.response.model"]) == ("judge:checker", "gpt-9-2031")
    assert (fields["gen_ai.provider.name"], fields["server.address"]) == ("openai", "127.0.0.1")
    assert KEY.encode() not in encode(span)


@pytest.mark.parametrize(("newline", "done"), [("\n", True), ("\r\n", True), ("\n", False)])
@pytest.mark.parametrize("wants_usage", [True, False])
async def test_a_stream_is_passed_on_chunk_by_chunk(newline: str, done: bool, wants_usage: bool) -> None:
    async with opened() as office:
        office.endpoint.newline, office.endpoint.done = newline, done
        options = {"stream_options": {"include_usage": True}} if wants_usage else {}
        chunks = [chunk async for chunk in await ask(office, stream=True, tools=TOOLS, **options)]
        (request,), (span,) = office.endpoint.requests, office.spans
    assert request["stream_options"] == {"include_usage": True} and "logprobs" not in request
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "It adds."
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == ([14] if wants_usage else [])
    assert span.call is not None and '"arguments": "{\\"a\\": 1}"' in span.call.response
    assert span.attributes["gen_ai.usage.output_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_one_after_the_other_use_one_connection(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_reuse, "END_SECONDS", HANG_SECONDS)
    async with opened() as office:
        for _ in range(3):
            office.endpoint.may_end.clear()
            answer = await ask(office, stream=stream)
            if stream:
                assert [chunk async for chunk in answer]
            office.endpoint.may_end.set()
            async with asyncio.timeout(HANG_SECONDS):
                while office.connections.reading:
                    await asyncio.wait(office.connections.reading)
        assert len(office.endpoint.peers) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_is_passed_on(stream: bool) -> None:
    async with opened() as office:
        answer: Any = await office.openai.completions.create(model="judge", prompt="add", stream=stream)
        text = "".join([chunk.choices[0].text async for chunk in answer]) if stream else answer.choices[0].text
        (span,) = office.spans
    assert text == "It adds." and span.call is not None and span.call.response == '"It adds."'


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_and_the_responses_dialect_are_translated(stream: bool) -> None:
    tool: Any = {"name": "add", "input_schema": {"type": "object"}}
    request: dict[str, Any] = {"model": "judge", "max_tokens": 9, "messages": MESSAGES, "tools": [tool]}
    async with opened() as office:
        if stream:
            async with office.anthropic.messages.stream(**request) as events:
                message = await events.get_final_message()
            async with office.openai.responses.stream(model="judge", input="add") as streamed:
                response: Any = await streamed.get_final_response()
        else:
            message = await office.anthropic.messages.create(**request)
            response = await office.openai.responses.create(model="judge", input="add")
        assert [request["model"] for request in office.endpoint.requests] == ["gpt-9", "gpt-9"]
        assert len(office.spans) == 2
    assert [block.type for block in message.content] == ["text", "tool_use"] and message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (11, 3)
    assert response.output_text == "It adds." and response.usage.total_tokens == USAGE["total_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("faults", [["429", "500"], ["503", "408"], ["no JSON"], ["break early"]])
async def test_a_call_is_asked_again_until_it_is_answered(faults: list[str], stream: bool) -> None:
    async with opened() as office:
        office.endpoint.faults = list(faults)
        answer: Any = await ask(office, stream=stream)
        text = answer.choices[0].message.content if not stream else ""
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])
        assert text == "It adds." and len(office.spans) == 1
        played = len(faults) if stream or faults != ["break early"] else 0
        assert len(office.endpoint.requests) == 1 + played and office.recorder.infra_error == ""


async def test_a_stream_that_breaks_off_amid_its_text_ends_in_an_error() -> None:
    async with opened() as office:
        office.endpoint.faults = ["break"]
        with pytest.raises(openai.APIError, match="the answer broke off"):
            async for _ in await ask(office, stream=True):
                pass
        assert "broke off" in office.recorder.infra_error and not office.spans


async def test_a_stream_that_the_agent_leaves_is_recorded_as_far_as_it_came() -> None:
    async with opened() as office:
        office.endpoint.faults = ["stall"]
        async with await ask(office, stream=True) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
        async with asyncio.timeout(60):
            while office.slot.admission.requests:
                await asyncio.sleep(0.01)
        (span,) = office.spans
    assert span.call is not None and span.call.finish_reason == "client_closed"
    assert json.loads(span.call.response) == {"role": "assistant", "content": "It "}


async def test_what_the_endpoint_refuses_the_agent_is_told_without_the_key() -> None:
    async with opened() as office:
        office.endpoint.faults = ["400"]
        with pytest.raises(openai.BadRequestError, match=r"no, \*\*\*"):
            await ask(office)
        assert len(office.endpoint.requests) == 1 and office.recorder.infra_error == ""


async def test_a_refused_key_is_the_runners_problem_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(key="sk-wrong") as office:
        for _ in range(2):
            with pytest.raises(openai.APIStatusError) as refused:
                await ask(office)
        sentence = "endpoint 'judge' refuses the key in JUDGE_KEY: status 401"
        assert refused.value.status_code == 504 and sentence in str(refused.value)
        assert office.recorder.infra_error == sentence == office.gateway.endpoints.problem()
        assert len(office.endpoint.requests) == 2
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage() == sentence and "sk-wrong" not in caplog.text


async def test_a_redirect_is_not_followed() -> None:
    async with opened() as office:
        office.endpoint.faults = ["301"]
        with pytest.raises(openai.APIStatusError, match="endpoint 'judge' answered 301: check its url"):
            await ask(office)
        assert len(office.endpoint.requests) == 1


async def test_an_unreachable_endpoint_is_named() -> None:
    async with opened(seconds=3.0) as office:
        await office.endpoint.close()
        with pytest.raises(openai.APIStatusError, match="endpoint 'judge' cannot be reached: "):
            await ask(office)


@pytest.mark.parametrize("fault", ["hang", "503"])
async def test_an_endpoint_that_never_answers_is_waited_for_until_the_deadline(fault: str) -> None:
    async with opened(seconds=5.0) as office:
        office.endpoint.faults = [fault] * 10_000
        with pytest.raises(openai.APIStatusError) as late:
            await ask(office)
    problem = {"hang": "gave no answer", "503": "answered 503"}[fault]
    assert late.value.status_code == 504
    assert office.recorder.infra_error == f"endpoint 'judge' {problem} until the rollout's deadline"


async def test_it_is_listed_and_has_neither_versions_nor_counted_tokens() -> None:
    async with opened(weight_versions={"judge": 3}) as office:
        assert [model.id async for model in office.openai.models.list()] == ["judge", "policy"]
        with pytest.raises(openai.BadRequestError, match="has no versions; the task pins version 3"):
            await ask(office)
        with pytest.raises(Exception, match="its tokens are not counted"):
            await office.anthropic.messages.count_tokens(model="judge", messages=MESSAGES)
    assert not office.endpoint.requests


async def test_a_rollout_asks_both_and_no_agent_log_or_record_has_the_key(
    bus: Bus, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("JUDGE_KEY", KEY)
    async with serving_endpoint() as endpoint:
        endpoints = {"judge": {"url": endpoint.url, "api_key_env": "JUDGE_KEY"}}
        async with running(bus, entrypoint="plain:asks_each", endpoints=endpoints, agent_name="one"):
            roles = {"role_models": {"checker": "judge"}}
            names = ["policy", "policy:checker", "policy"]
            await TaskPublisher(bus).publish_task(task(agent="one", input={"models": names}, **roles))
            (batch,) = await ended(bus)
        async with running(bus, entrypoint="plain:says_its_environment", endpoints=endpoints, agent_name="two"):
            await TaskPublisher(bus).publish_task(task(id="u", agent="two"))
            (seen,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    assert [request["model"] for request in endpoint.requests] == ["judge"]
    calls = calls_of(batch)
    assert [call.model for call in calls] == ["policy", "judge", "policy"]
    assert (batch.end.usage.num_calls, batch.end.usage.response_tokens) == (3, 4)
    assert batch.end.usage.newest_versions == {"policy": 3}
    assert seen.end is not None and "OPENAI_API_KEY" in seen.end.result and "JUDGE_KEY" not in seen.end.result
    assert KEY.encode() not in encode(batch) + encode(seen) and KEY not in caplog.text
    assert len(build_transitions(calls, "policy")) == 2
    transitions = build_transitions(calls)
    assert [len(call.response_ids) for call in transitions] == [2, 0, 2]
    assert find_parents(transitions) == [None, None, None], "a call without tokens is no beginning of another"


async def test_a_runner_whose_environment_lacks_a_key_says_so_at_start(bus: Bus) -> None:
    endpoints = {"judge": {"url": "http://127.0.0.1:1/v1", "api_key_env": "NO_SUCH_KEY"}}
    checked = RunnerSettings.model_validate({"entrypoint": "plain:asks", "working_dir": AGENTS, "endpoints": endpoints})
    with pytest.raises(CredentialsError, match=r"endpoints\.judge: the environment of the runner has no NO_SUCH_KEY"):
        await runner.run(bus, checked, None)  # type: ignore[arg-type]  # it ends before it waits
    with pytest.raises(CredentialsError, match="JUDGE_KEY holds no API key: it is not one printable word") as refused:
        ExternalEndpoints({"judge": EndpointSettings(url="http://x/v1", api_key_env="JUDGE_KEY")}, {"JUDGE_KEY": "a b"})
    assert "a b" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"endpoints": {"judge": {"url": "api.example.com/v1"}}}, "it is no URL, such as https://api.example.com/v1"),
        ({"endpoints": {"judge": {"url": "https://u:p@example.com/v1"}}}, "it has a user, a query or a fragment"),
        ({"endpoints": {"judge": {"url": "https://example.com:no/v1"}}}, "it is no URL"),
        ({"endpoints": {"a judge": {"url": "https://example.com/v1"}}}, "'a judge' is no name of a model"),
        ({"endpoints": {"auto": {"url": "https://example.com/v1"}}}, "'auto' is no name of a model"),
        (
            {"endpoints": {"judge": {"url": "https://e.com/v1", "api_key_env": "K"}}, "env": ["K"]},
            "env gives agents K, the key of endpoint 'judge'",
        ),
    ],
)
def test_wrong_endpoints_are_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        RunnerSettings.model_validate({"entrypoint": "plain:asks", **fields})
