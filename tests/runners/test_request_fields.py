"""Every field that the vendors' clients and vLLM know is honoured, refused, or said to be harmless: none is dropped."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic import beta_async_tool
from anthropic.types import (
    ContentBlockParam,
    MessageParam,
    OutputConfigParam,
    ThinkingConfigParam,
    ToolChoiceParam,
    ToolParam,
    ToolUnionParam,
)
from anthropic.types import message_create_params as messages
from anthropic.types.beta import (
    BetaContentBlockParam,
    BetaOutputConfigParam,
    BetaThinkingConfigParam,
    BetaToolChoiceParam,
    BetaToolParam,
    BetaToolUnionParam,
)
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import completion_create_params as completions
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chats
from openai.types.responses import ResponseIncludable, ResponseTextConfigParam, response_input_param
from openai.types.responses import ToolParam as ResponseToolParam
from openai.types.responses import response_create_params as responses
from openai.types.shared_params import Reasoning

from lightningbus.bus.client import Bus
from lightningbus.runners.protocol import request_fields as tables
from lightningbus.runners.protocol.dialects import (
    anthropic_request,
    gemini_fields,
    responses_client_tools,
    responses_request,
)
from lightningbus.runners.protocol.dialects.anthropic_tools import CLIENT_TOOLS, DATE
from lightningbus.runners.protocol.dialects.registry import APIS, GEMINI_MODEL, GENERATE_CONTENT
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.request_fields import FieldTable
from lightningbus.runners.protocol.token_history import TokenHistory
from tests.runners.conftest import PROMPT, ScriptedEngine
from tests.runners.external import opened as external
from tests.runners.test_dialects import opened

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "chat/completions", "completions", "responses", "messages"
USER = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "policy", "messages": USER},
    COMPLETIONS: {"model": "policy", "prompt": "x"},
    RESPONSES: {"model": "policy", "input": "x"},
    MESSAGES: {"model": "policy", "messages": USER, "max_tokens": 9},
    GENERATE_CONTENT: {"model": "policy", "contents": [{"parts": [{"text": "x"}]}]},
}
OWN = {CHAT: tables.CHAT, COMPLETIONS: tables.COMPLETIONS, RESPONSES: tables.RESPONSES, MESSAGES: tables.MESSAGES,
       GENERATE_CONTENT: gemini_fields.GEMINI}  # fmt: skip
CLIENTS = {
    CHAT: [chats.CompletionCreateParamsNonStreaming, chats.CompletionCreateParamsStreaming],
    COMPLETIONS: [completions.CompletionCreateParamsNonStreaming, completions.CompletionCreateParamsStreaming],
    RESPONSES: [responses.ResponseCreateParamsNonStreaming, responses.ResponseCreateParamsStreaming],
    MESSAGES: [messages.MessageCreateParamsNonStreaming, messages.MessageCreateParamsStreaming,
               beta_messages.MessageCreateParamsNonStreaming, beta_messages.MessageCreateParamsStreaming],
}  # fmt: skip


def keys(*schemas: Any) -> set[str]:
    """The fields of typed dictionaries; of a type that names several, those of all."""
    names: set[str] = set()
    for schema in schemas:
        members = typing.get_args(schema)
        names |= keys(*members) if members else set(getattr(schema, "__annotations__", ()))
        for base in getattr(schema, "__orig_bases__", ()):
            names |= keys(base)
    return names


def kinds(schema: Any) -> Iterator[str]:
    """The values of ``type`` that the members of a union have."""
    members = typing.get_args(schema)
    if members and typing.get_origin(schema) is not typing.Literal:
        for member in members:
            yield from kinds(member)
    elif hasattr(schema, "__annotations__"):
        hint = schema.__annotations__.get("type")
        text = getattr(hint, "__forward_arg__", None) or str(hint)
        yield from (word for number, word in enumerate(text.replace("'", '"').split('"')) if number % 2)


def parsed(path: str, **fields: Any) -> ChatRequest:
    """As a node is asked; raises ValueError."""
    call = APIS[path].parse({**BODIES[path], **fields}, TokenHistory(responses={"resp_1": USER})).call
    call.check_fields()
    return call


def meant(call: ChatRequest) -> dict[str, Any]:
    """What an engine, and the gateway, make of a call."""
    return {
        **call.to_engine_request({}), "model": call.model, "stream": call.stream, "role": call.role,
        "shown": (
            call.wants_usage, call.wants_logprobs, call.wants_token_ids, call.hides_reasoning, call.names_tokens_by_id
        ),
    }  # fmt: skip


@pytest.mark.parametrize("path", CLIENTS)
def test_every_field_of_the_clients_is_decided(path: str) -> None:
    known = OWN[path].names if path in (CHAT, COMPLETIONS) else OWN[path].names | tables.CHAT.names
    assert keys(*CLIENTS[path]) - known == set(), "honour it, refuse it, or say in the table why it is harmless"


@pytest.mark.integration
def test_every_field_of_vllm_is_decided() -> None:
    chat = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest
    completion = pytest.importorskip("vllm.entrypoints.openai.completion.protocol").CompletionRequest
    assert set(chat.model_fields) - tables.CHAT.names == set()
    assert set(completion.model_fields) - tables.COMPLETIONS.names == set()
    assert tables.CHAT.honoured - set(chat.model_fields) == set(), "what vLLM does not know it drops without a word"
    assert tables.COMPLETIONS.honoured - set(completion.model_fields) == set()


@pytest.mark.parametrize(
    ("schemas", "table"),
    [
        ([ChatCompletionStreamOptionsParam], tables.STREAM_OPTIONS),
        ([responses.StreamOptions], tables.RESPONSES_STREAM_OPTIONS),
        ([Reasoning], tables.RESPONSES_REASONING),
        ([ResponseTextConfigParam], tables.RESPONSES_TEXT),
        ([OutputConfigParam, BetaOutputConfigParam], tables.MESSAGES_OUTPUT_CONFIG),
        ([ThinkingConfigParam, BetaThinkingConfigParam], tables.MESSAGES_THINKING),
        ([ToolChoiceParam, BetaToolChoiceParam], tables.MESSAGES_TOOL_CHOICE),
        ([ToolParam, BetaToolParam], tables.MESSAGES_TOOL),
    ],
    ids=lambda value: value.place if isinstance(value, FieldTable) else "",
)
def test_every_field_within_is_decided(schemas: list[Any], table: FieldTable) -> None:
    assert keys(*schemas) and keys(*schemas) - table.names == set()


def test_every_value_of_include_is_decided() -> None:
    assert set(typing.get_args(ResponseIncludable)) - tables.RESPONSES_INCLUDE.names == set()


ALL_TABLES = [table for module in (tables, gemini_fields) for table in vars(module).values()
              if isinstance(table, FieldTable)]  # fmt: skip


@pytest.mark.parametrize("table", ALL_TABLES)
def test_a_field_has_one_treatment_and_a_reason(table: FieldTable) -> None:
    assert not table.honoured & table.harmless.keys() | table.honoured & table.refused.keys()
    assert not table.harmless.keys() & table.refused.keys()
    assert all(table.harmless.values()) and all(refusal.reason for refusal in table.refused.values())


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, table in OWN.items() for name in sorted(table.refused)]
)
def test_a_refused_field_is_said(path: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} (is not served: |needs a service)"):
        parsed(path, **{name: {"x": 2}})
    for neutral in (None, False, *OWN[path].refused[name].neutral):
        parsed(path, **{name: neutral})


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, table in OWN.items() for name in sorted(table.harmless)]
)
def test_a_harmless_field_changes_nothing(path: str, name: str) -> None:
    plain, with_field = meant(parsed(path)), meant(parsed(path, **{name: "x"}))
    with_field.pop(name, None)
    assert with_field == plain


FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
SAMPLES: dict[str, Any] = {
    "model": "other", "messages": [{"role": "user", "content": "y"}], "prompt": "y", "input": "y", "stream": True,
    "stream_options": {"include_usage": True}, "logprobs": True, "return_token_ids": True, "include_reasoning": False,
    "return_tokens_as_token_ids": True,
    "instructions": "be brief", "system": "be brief", "previous_response_id": "resp_1", "stop_sequences": ["x"],
    "reasoning": {"effort": "low"}, "thinking": {"type": "disabled"}, "output_config": {"effort": "low"},
    "systemInstruction": {"parts": [{"text": "be brief"}]}, "contents": [{"parts": [{"text": "y"}]}],
    "generationConfig": {"topK": 3},
    "output_format": {"type": "json_schema", "schema": {}}, "text": {"format": {"type": "json_object"}},
}  # fmt: skip
OF_MESSAGES = {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}
OF_RESPONSES = {"tools": [{"type": "function", **FUNCTION}]}
OF_GEMINI = {"tools": [{"functionDeclarations": [FUNCTION]}]}
WITH_TOOLS: dict[tuple[str, str], Any] = {
    (MESSAGES, "tool_choice"): ({"type": "any"}, OF_MESSAGES),
    (MESSAGES, "tools"): (OF_MESSAGES["tools"], {}),
    (RESPONSES, "tool_choice"): ("required", OF_RESPONSES),
    (RESPONSES, "parallel_tool_calls"): (False, OF_RESPONSES),
    (RESPONSES, "tools"): (OF_RESPONSES["tools"], {}),
    (GENERATE_CONTENT, "toolConfig"): ({"functionCallingConfig": {"mode": "ANY"}}, OF_GEMINI),
    (GENERATE_CONTENT, "tools"): (OF_GEMINI["tools"], {}),
}
DECIDED_BY_VALUE = {(RESPONSES, "include"), (RESPONSES, "stream_options")}


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, table in OWN.items() for name in sorted(table.honoured)]
)
def test_an_honoured_field_is_acted_on(path: str, name: str) -> None:
    if (path, name) in DECIDED_BY_VALUE:
        return
    value, beside = WITH_TOOLS.get((path, name), (SAMPLES.get(name, 7), {}))
    assert meant(parsed(path, **beside, **{name: value})) != meant(parsed(path, **beside))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"stream_options": {"continuous_usage_stats": True}}),
        (CHAT, {"stream_options": {"unheard_of": 1}}),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}),
        (RESPONSES, {"include": ["unheard_of"]}),
        (RESPONSES, {"text": {"verbosity": "low"}}),
        (RESPONSES, {"text": {"format": {"type": "grammar"}}}),
        (RESPONSES, {"reasoning": {"mode": "pro"}}),
        (RESPONSES, {"reasoning": {"unheard_of": 1}}),
        (MESSAGES, {"output_config": {"task_budget": {"type": "tokens", "total": 1}}}),
        (MESSAGES, {"output_config": {"format": {"type": "grammar"}}}),
        (MESSAGES, {"thinking": {"type": "unheard_of"}}),
        (MESSAGES, {"tool_choice": {"type": "unheard_of"}, **OF_MESSAGES}),
        (MESSAGES, {"tool_choice": {"type": "any"}}),
        (MESSAGES, {"tools": [{**OF_MESSAGES["tools"][0], "input_examples": [{}]}]}),
        (MESSAGES, {"system": [{"type": "image"}]}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}),
        (RESPONSES, {"tool_choice": {"type": "mcp"}}),
    ],
)  # fmt: skip
def test_what_is_meant_within_a_field_is_refused_too(path: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not (served|known here)|needs tools"):
        parsed(path, **fields)


def accepted(path: str, field: str, schema: Any, wrap: Any) -> set[str]:
    """The kinds of a union that are no error; any other is refused in a sentence."""
    accepted_kinds = set()
    for kind in set(kinds(schema)):
        try:
            parsed(path, **{field: wrap({"type": kind})})
            accepted_kinds.add(kind)
        except ValueError as error:
            assert len(str(error).split()) > 5, kind
        except (LookupError, TypeError):  # known, and not whole
            accepted_kinds.add(kind)
    return accepted_kinds


def test_kinds_that_are_not_known_are_refused() -> None:
    """New ones too: what is accepted is listed, and each of it has a meaning in a chat."""
    of_user = accepted(MESSAGES, "messages", ContentBlockParam, lambda block: [{"role": "user", "content": [block]}])
    of_user |= accepted(
        MESSAGES, "messages", BetaContentBlockParam, lambda block: [{"role": "user", "content": [block]}]
    )
    assert of_user == {"text", "tool_result", "document", "search_result"}, "an image has a source"
    of_model = accepted(
        MESSAGES, "messages", BetaContentBlockParam, lambda block: [{"role": "assistant", "content": [block]}]
    )
    assert of_model == {"text", "thinking", "tool_use", "compaction", *anthropic_request.OF_VENDOR}
    for schema in (ToolUnionParam, BetaToolUnionParam):
        kinds_of_tools = accepted(MESSAGES, "tools", schema, lambda tool: [tool])
        assert {DATE.sub("", kind) for kind in kinds_of_tools} == {"custom", *CLIENT_TOOLS}, "run by the agent"
    for schema in (ThinkingConfigParam, BetaThinkingConfigParam):
        assert accepted(MESSAGES, "thinking", schema, lambda thinking: thinking) == {"enabled", "disabled", "adaptive"}
    left_out = accepted(RESPONSES, "tools", ResponseToolParam, lambda tool: [tool])
    assert left_out >= {"function", "custom", "namespace", "web_search"}, "the vendor's own are left out, and logged"
    items = accepted(RESPONSES, "input", response_input_param.ResponseInputItemParam, lambda item: [item])
    calls = {"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
    calls |= {*responses_client_tools.CALLS, *responses_client_tools.OUTPUTS}
    assert items == {*calls, "reasoning", *responses_request.OF_VENDOR}, "a message has a role, a reference an id"
    assert keys(MessageParam) == {"role", "content"}


def test_a_tool_that_failed_says_so() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "no such file"}
    for block, text in ((result, "no such file"), ({**result, "is_error": True}, "Error: no such file")):
        assert parsed(MESSAGES, messages=[{"role": "user", "content": [block]}]).body["messages"][0]["content"] == text


@pytest.mark.parametrize("path", BODIES)
async def test_a_field_that_nobody_knows_is_refused(bus: Bus, engine: ScriptedEngine, path: str) -> None:
    async with opened(bus) as desk, aiohttp.ClientSession() as http:
        body, url = {**BODIES[path], "unheard_of": 1}, f"{desk.url}/v1/{path.replace(GEMINI_MODEL, 'models/policy')}"
        async with http.post(url, json=body, headers={"x-api-key": desk.key}) as answer:
            assert answer.status == 400
            assert "unheard_of is not known here" in (await answer.json())["error"]["message"]
        body |= {"unheard_of": None}
        async with http.post(url, json=body, headers={"x-api-key": desk.key}) as answer:
            assert answer.status == 200
    assert len(engine.requests) == 1


async def test_an_operator_may_have_fields_left_out(bus: Bus, engine: ScriptedEngine) -> None:
    async with opened(bus, ignored_fields=["unheard_of"]) as desk:
        await desk.openai.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "x"}], extra_body={"unheard_of": 1}
        )
    assert "unheard_of" not in engine.requests[0]


async def test_an_external_endpoint_decides_on_its_fields_itself() -> None:
    async with external() as office:
        messages: list[Any] = [{"role": "user", "content": "x"}]
        await office.openai.chat.completions.create(
            model="judge", messages=messages, verbosity="low", extra_body={"unheard_of": 1}
        )
    assert office.endpoint.requests[0]["unheard_of"] == 1 and office.endpoint.requests[0]["verbosity"] == "low"


async def test_a_conversation_that_the_server_should_keep_is_sent_whole(bus: Bus, engine: ScriptedEngine) -> None:
    """The vendor's own runner of tools asks for a thread, is told that there is none, and goes on without one."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

    @beta_async_tool
    async def add(a: int) -> str:
        """Adds."""
        engine.script = [{"role": "assistant", "content": "four", "finish_reason": "stop"}]
        return str(a + 3)

    engine.script = [{"role": "assistant", "tool_calls": [call]}, {"finish_reason": "tool_calls"}]
    async with opened(bus) as desk:
        runner = desk.anthropic.beta.messages.tool_runner(
            model="policy", max_tokens=99, tools=[add], messages=[{"role": "user", "content": "1 + 3?"}]
        )
        last = await runner.until_done()
        assert last.content[0].text == "four"  # type: ignore[union-attr]
        with pytest.raises(anthropic.BadRequestError, match="thread is not served") as refused:
            await desk.anthropic.beta.messages.create(
                model="policy", max_tokens=9, messages=[{"role": "user", "content": "x"}],
                thread={"type": "continue", "previous_message_id": "msg_1"},
            )  # fmt: skip
    assert refused.value.error_code == "thread_unsupported_request"
    whole = [[message["role"] for message in request["messages"]] for request in engine.requests]
    assert whole == [["user"], ["user", "assistant", "tool"]]
    assert PROMPT and json.dumps(engine.requests[-1]["messages"][-1]) == json.dumps(
        {"role": "tool", "tool_call_id": "call_1", "content": "4"}
    )
