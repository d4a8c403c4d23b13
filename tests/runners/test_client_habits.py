"""Requests as clients happen to write them: the meaning is the vendor's, and the record has what was sampled."""

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.gateway.call_parser import CallParser
from lightningbus.runners.protocol.dialects.registry import APIS, GENERATE_CONTENT
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.thoughts import seal
from lightningbus.runners.protocol.token_history import TokenHistory
from tests.runners.chat_templates import ANYWHERE, RenderingEngine
from tests.runners.conftest import PROMPT, ScriptedEngine
from tests.runners.test_coding_agents import called
from tests.runners.test_dialects import SAYING, Desk, opened

PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.fixture
async def desk(bus: Bus, engine: ScriptedEngine) -> AsyncIterator[Desk]:
    engine.script = SAYING
    async with opened(bus) as desk:
        yield desk


async def post(desk: Desk, path: str, **body: Any) -> tuple[int, str, str]:
    """Status, content type and text of an answer."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {desk.key}"}) as session,
        session.post(f"{desk.url}/v1/{path}", json={"model": "policy", **body}) as response,
    ):
        return response.status, response.content_type, await response.text()


async def test_parts_of_text_are_lines_as_vllm_renders_them(desk: Desk, engine: ScriptedEngine) -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": PARTS}
    await post(desk, "messages", max_tokens=5, messages=[{"role": "user", "content": [result, *PARTS]}])
    parts = [{**part, "type": "input_text"} for part in PARTS]
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    answer = {"role": "assistant", "content": [{**part, "type": "output_text"} for part in PARTS]}
    await post(desk, "responses", input=[answer, output, {"role": "user", "content": parts}])
    first, second = ([message["content"] for message in request["messages"]] for request in engine.requests)
    assert first == ["one\ntwo", "one\ntwo"]
    assert second == ["onetwo", "one\ntwo", "one\ntwo"], "the parts of an answer are one sampled text"


async def test_a_streamed_message_begins_with_the_length_of_its_prompt(desk: Desk) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    stream = await desk.anthropic.messages.create(model="policy", max_tokens=5, messages=messages, stream=True)
    usages = [
        event.message.usage if event.type == "message_start" else event.usage
        async for event in stream
        if event.type in ("message_start", "message_delta")
    ]
    assert [usage.input_tokens for usage in usages] == [len(PROMPT)] * 2
    assert [usage.output_tokens for usage in usages] == [0, len(SAYING)]


@pytest.mark.parametrize(("value", "is_stream"), [("false", False), (0, False), ("true", True), (1, True)])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("completions", {"prompt": "x"}),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}),
        ("responses", {"input": "x"}),
    ],
)
async def test_a_switch_may_be_a_word(desk: Desk, path: str, body: Any, value: Any, is_stream: bool) -> None:
    status, kind, _ = await post(desk, path, **body, stream=value)
    assert (status, kind) == (200, "text/event-stream" if is_stream else "application/json")


async def test_a_switch_that_is_neither_is_refused(desk: Desk) -> None:
    status, _, text = await post(desk, "chat/completions", messages=[], stream="maybe")
    assert status == 400 and "stream is true or false" in text


@pytest.mark.parametrize("streamed", [False, True])
async def test_ids_for_texts_are_the_agents_and_the_record_has_texts(
    desk: Desk, engine: ScriptedEngine, streamed: bool
) -> None:
    more: dict[str, Any] = {"model": "policy", "logprobs": True, "stream": streamed}
    more |= {"messages": [{"role": "user", "content": "x"}], "extra_body": {"return_tokens_as_token_ids": True}}
    answer = await desk.openai.chat.completions.create(**more)
    choices = [chunk.choices[0] async for chunk in answer if chunk.choices] if streamed else answer.choices
    names = [entry.token for choice in choices for entry in choice.logprobs.content]
    assert names == ["token_id:10", "token_id:11", "token_id:12"]
    (call,) = desk.calls
    assert call.token_texts == ("x", "x", "x")
    assert "return_tokens_as_token_ids" not in engine.requests[0]


FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in ("add", "sub")]


def allow(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_a_chat_has_the_tools_that_its_choice_allows(desk: Desk, engine: ScriptedEngine) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": FUNCTIONS}
    for choice in (allow("add"), allow("sub", mode="required"), allow("gone")):
        assert (await post(desk, "chat/completions", **chat, tool_choice=choice))[0] == 200
    offered = [(request.get("tools"), request.get("tool_choice")) for request in engine.requests]
    assert offered == [(FUNCTIONS[:1], "auto"), (FUNCTIONS[1:], "required"), (None, None)]
    status, _, text = await post(desk, "chat/completions", **chat, tool_choice=allow("gone", mode="required"))
    assert status == 400 and "requires one of its allowed tools" in text


@pytest.mark.parametrize(("template", "is_told"), [(ANYWHERE, True), (ANYWHERE.replace("m.role", "m.name"), False)])
async def test_names_that_a_template_leaves_out_are_told_once(
    bus: Bus, template: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [{"role": "user", "name": name, "content": "x"} for name in ("Ann", "Bob")]
    async with RenderingEngine(template).serving(bus), opened(bus) as desk:
        for _ in range(2):
            assert (await post(desk, "chat/completions", messages=messages))[0] == 200
    assert caplog.text.count("policy does not read the `name` of messages") == is_told


GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}}
CODE: dict[str, Any] = {"type": "custom", "custom": {"name": "code", "description": "Runs.", "format": GRAMMAR}}
CODE_CHOICE: Any = {"type": "custom", "custom": {"name": "code"}}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_custom_tool_of_a_chat_takes_text(desk: Desk, engine: ScriptedEngine, streamed: bool) -> None:
    sampled = '{ "input" :"print(1)"}'
    (start, *_), end = called("code", sampled)[0]["tool_calls"], {"finish_reason": "tool_calls"}
    pieces = [{"index": 0, "function": {"arguments": part}} for part in (sampled[:9], sampled[9:])]
    start = {**start, "function": {"name": "code"}}
    other = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    engine.script = [{"role": "assistant", "tool_calls": [piece]} for piece in (start, *pieces, other)] + [end]
    request: dict[str, Any] = {"model": "policy", "tools": [*FUNCTIONS, CODE]}
    messages: list[Any] = [{"role": "user", "content": "x"}]
    answer: Any = await desk.openai.chat.completions.create(**request, messages=messages, stream=streamed)
    if streamed:
        parts = [part async for chunk in answer if chunk.choices for part in chunk.choices[0].delta.tool_calls or ()]
        calls = [{**part.model_dump(exclude_none=True, exclude={"index"})} for part in parts]
    else:
        calls = [call.model_dump(exclude_none=True) for call in answer.choices[0].message.tool_calls]
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "code", "input": "print(1)"}}
    assert custom in calls and [call["type"] for call in calls].count("function") == 1 and len(calls) == 2
    engine.script = SAYING
    messages += [
        {"role": "assistant", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in calls),
    ]
    await desk.openai.chat.completions.create(**request, messages=messages, tool_choice=CODE_CHOICE)
    first, second = engine.requests
    (*functions, code) = first["tools"]
    assert functions == FUNCTIONS and code["function"]["parameters"]["required"] == ["input"]
    assert "lark grammar:\nstart: WORD" in code["function"]["description"]
    assert second["tool_choice"] == {"type": "function", "function": {"name": "code"}}
    sent = {call["function"]["name"]: call["function"]["arguments"] for call in second["messages"][1]["tool_calls"]}
    assert sent == {"code": sampled, "add": "{}"}


async def test_a_custom_tool_of_a_chat_may_be_one_of_the_allowed(desk: Desk, engine: ScriptedEngine) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": [*FUNCTIONS, CODE]}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CODE_CHOICE]}}
    assert (await post(desk, "chat/completions", **chat, tool_choice=allowed))[0] == 200
    (request,) = engine.requests
    assert [tool["function"]["name"] for tool in request["tools"]] == ["code"]
    for wrong in ({"type": "custom"}, {"type": "custom", "custom": []}, {"type": "custom", "custom": {}}):
        assert (await post(desk, "chat/completions", **{**chat, "tools": [wrong]}))[0] == 400


CHAT = APIS["chat/completions"]
QUESTION = {"role": "user", "content": "x"}


def parsed_chat(**body: Any) -> ChatRequest:
    """A chat as a node is asked; raises ValueError."""
    call = CHAT.parse({"model": "policy", "messages": [QUESTION], **body}, TokenHistory()).call
    call.check_fields()
    return call.leave_out_unread()[0]


def test_a_null_asks_for_what_an_absent_field_asks_for() -> None:
    nulls = dict.fromkeys(("top_logprobs", "tool_choice", "n", "add_generation_prompt", "stop"))
    request = parsed_chat(tools=FUNCTIONS, **nulls).to_engine_request({})
    assert request == parsed_chat(tools=FUNCTIONS).to_engine_request({})
    assert request["top_logprobs"] == 0, "vLLM gives no log-probabilities for null"


def test_fields_of_a_message_that_no_model_reads_are_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    answer = {"role": "assistant", "content": "yes", "annotations": [{}], "thinking_blocks": [{"thinking": "hm"}]}
    question = {**QUESTION, "timestamp": 1, "cache_control": {"type": "ephemeral"}, "unheard_of": None}
    body = json.dumps({"model": "policy", "messages": [question, answer, question]}).encode()
    running: Any = SimpleNamespace(recorder=SimpleNamespace(history=TokenHistory()), task=None, prompts=())

    def messages_by(parser: CallParser) -> Any:
        return parser.parse(CHAT, body, running, ["policy"])[0].call.body["messages"]

    assert messages_by(CallParser(["policy"], (), {})) == [question, answer, question], "an endpoint decides itself"
    assert not caplog.records
    parser = CallParser(["judge"], (), {})
    for _ in range(2):
        assert messages_by(parser) == [QUESTION, {"role": "assistant", "content": "yes"}, QUESTION]
    sentence = "requests have 'messages.{}', which no model here reads: it is left out"
    assert [record.message for record in caplog.records] == list(map(sentence.format, ("thinking_blocks", "timestamp")))


@pytest.mark.parametrize(
    ("field", "value"),
    [("function_call", {"name": "add", "arguments": "{}"}), ("prefix", True), ("audio", {"id": "audio_1"})],
)
def test_fields_of_a_message_with_another_meaning_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^messages\.{field} is not served: "):
        parsed_chat(messages=[QUESTION, {"role": "assistant", "content": "y", field: value}])


@pytest.mark.parametrize(
    ("content", "read"),
    [(None, "I may not."), ("", "I may not."), ("Sorry.", "Sorry.\nI may not."), (PARTS, "one\ntwo\nI may not.")],
)
def test_a_refusal_beside_the_content_is_read(content: Any, read: str) -> None:
    answer = {"role": "assistant", "content": content, "refusal": "I may not."}
    call = parsed_chat(messages=[QUESTION, answer, {**answer, "refusal": None}])
    assert [message["content"] for message in call.body["messages"]] == ["x", read, content]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
@pytest.mark.parametrize("tools", [[], [{"type": "web_search"}]])
def test_a_response_that_must_call_a_tool_needs_one(choice: Any, tools: list[Any]) -> None:
    body = {"model": "policy", "input": "x", "tools": tools}
    with pytest.raises(ValueError, match="asks for a call, and none of the request's tools runs here"):
        APIS["responses"].parse({**body, "tool_choice": choice}, TokenHistory())
    for harmless in ("auto", "none", None):
        assert "tools" not in APIS["responses"].parse({**body, "tool_choice": harmless}, TokenHistory()).call.body


RESULTS = [{"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "gAAA"}]
LEFT_OUT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "messages": (
        {"messages": [
            QUESTION,
            {"role": "assistant", "content": [
                {"type": "redacted_thinking", "data": "gAAA"},
                {"type": "thinking", "thinking": "", "signature": "gAAA"},
                {"type": "thinking", "thinking": "I see.", "signature": "gAAA"},
                {"type": "thinking", "thinking": "", "signature": seal("I hear.")},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": RESULTS},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": RESULTS},
                {"type": "text", "text": "yes"},
            ]},
            QUESTION,
        ]},
        ("redacted_thinking", "thinking", "server_tool_use", "web_search_tool_result"),
    ),
    "responses": (
        {"input": [
            QUESTION,
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I see."}], "encrypted_content": "gAAA"},
            {"type": "message", "role": "assistant", "content": "yes"},
        ]},
        ("reasoning",),
    ),
    GENERATE_CONTENT: (
        {"contents": [
            {"parts": [{"text": "x"}]},
            {"role": "model", "parts": [
                {"executableCode": {"language": "PYTHON", "code": "1"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
                {"text": "yes", "thoughtSignature": "gAAA"},
            ]},
        ]},
        ("executableCode", "codeExecutionResult"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", LEFT_OUT)
def test_what_a_vendor_put_into_the_history_is_left_out_and_told(path: str) -> None:
    body, kinds = LEFT_OUT[path]
    dialect = APIS[path].parse({"model": "policy", "max_tokens": 5, **body}, TokenHistory())
    assert dialect.left_out == kinds
    assert dialect.call.body["messages"][1]["content"] == "yes"


def document(source: Any, **more: Any) -> Any:
    block = {"type": "document", "source": source, **more}
    body = {"model": "policy", "max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
    return APIS["messages"].parse(body, TokenHistory()).call.body["messages"][0]["content"]


def test_a_document_is_read_with_its_title_and_context() -> None:
    text, heads = (
        {"type": "text", "media_type": "text/plain", "data": "Rain."},
        {"title": "July", "context": "In Oslo."},
    )
    assert document(text) == "Rain."
    assert document(text, **heads) == "July\nIn Oslo.\nRain."
    picture = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    content = {"type": "content", "content": [{"type": "text", "text": "Rain."}, picture]}
    assert [part.get("text") for part in document(content, **heads)] == ["July", "In Oslo.", "Rain.", None]
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    assert document(pdf, **heads) == "[document July left out: this model reads text only]\nIn Oslo."


def test_the_description_of_a_namespace_is_read() -> None:
    parameters = {"type": "object", "properties": {}}
    inner = [{"type": "function", "name": name, "description": f"{name}s", "parameters": parameters} for name in "ab"]
    tools = [{"type": "namespace", "name": "crm", "description": "Ask first.", "tools": inner}]
    body = APIS["responses"].parse({"model": "policy", "input": "x", "tools": tools}, TokenHistory()).call.body
    descriptions = [tool["function"]["description"] for tool in body["tools"]]
    assert descriptions == ["Of the tools of crm: Ask first.\n\nas", "bs"]
