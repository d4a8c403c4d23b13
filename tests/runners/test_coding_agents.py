"""Coding agents send what no plain chat has: it is honoured, or left out with a word, and the session goes on."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import anthropic
import jinja2
import openai
import pytest
from aiohttp import web

from lightningbus.bus.client import Bus
from lightningbus.runners.gateway import sse
from lightningbus.runners.protocol.answers import continuation
from lightningbus.runners.protocol.dialects.anthropic_request import chat as chat_of_messages
from lightningbus.runners.protocol.dialects.anthropic_tools import MessagesTools
from lightningbus.runners.protocol.dialects.base import input_of
from lightningbus.runners.protocol.dialects.custom_tools import custom_input
from lightningbus.runners.protocol.dialects.registry import APIS
from lightningbus.runners.protocol.model_format import ModelFormat, adapt_messages, needed_fields, probes
from lightningbus.runners.protocol.model_names import apply_alias
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory
from tests.runners.chat_templates import ALTERNATING, ANYWHERE, HERMES, STRICT, TEMPLATES, RenderingEngine, render
from tests.runners.conftest import ScriptedEngine
from tests.runners.test_dialects import Desk, opened
from tests.runners.test_dialects import desk as desk

USER: dict[str, Any] = {"role": "user", "content": "fix it"}
OTHER: dict[str, Any] = {"role": "user", "content": "and test it"}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
CODEX_TOOLS: list[Any] = [
    {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "Patches files.", "format": GRAMMAR},
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Other agents.",
        "tools": [
            {"type": "function", "name": "spawn_agent", "parameters": {"type": "object", "properties": {}}},
            {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}},
        ],
    },
    {"type": "web_search"},
    {"type": "image_generation"},
]
PNG = "data:image/png;base64,AAAA"


def chat_of_response(history: TokenHistory | None = None, **body: Any) -> ChatRequest:
    return APIS["responses"].parse({"model": "policy", **body}, history or TokenHistory()).call


def called(name: str, arguments: str, call_id: str = "call_1") -> list[dict[str, Any]]:
    """An engine's answer that calls a function."""
    call = {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "tool_calls": [call]}, {"finish_reason": "tool_calls"}]


async def respond(desk: Desk, streamed: bool, **body: Any) -> Any:
    """A response by the vendor's client."""
    if not streamed:
        return await desk.openai.responses.create(model="policy", tools=CODEX_TOOLS, **body)
    stream = await desk.openai.responses.create(model="policy", tools=CODEX_TOOLS, stream=True, **body)
    return [event async for event in stream][-1].response


def test_codex_tools_are_functions_and_the_vendors_are_left_out() -> None:
    dialect = APIS["responses"].parse({"model": "policy", "input": "x", "tools": CODEX_TOOLS}, TokenHistory())
    functions = {tool["function"]["name"]: tool["function"] for tool in dialect.call.body["tools"]}
    assert list(functions) == ["shell", "apply_patch", "spawn_agent", "multi_agent_v1__shell"]
    assert functions["apply_patch"]["parameters"]["required"] == ["input"]
    assert GRAMMAR["definition"] in functions["apply_patch"]["description"]
    assert dialect.left_out == ("web_search", "image_generation")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_custom_tools_call_is_text_and_comes_back_as_sampled(
    desk: Desk, engine: ScriptedEngine, streamed: bool
) -> None:
    sampled = '{ "input" :"*** Begin Patch"}'
    engine.script = called("apply_patch", sampled)
    (item,) = (await respond(desk, streamed, input="x")).output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", "*** Begin Patch")
    result = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Done"}
    engine.script = [{"role": "assistant", "content": "ok"}, {"finish_reason": "stop"}]
    await respond(desk, streamed, input=[{"role": "user", "content": "x"}, item.model_dump(exclude_none=True), result])
    _, answer, tool = engine.requests[-1]["messages"]
    assert answer["tool_calls"][0]["function"] == {"name": "apply_patch", "arguments": sampled}
    assert tool == {"role": "tool", "tool_call_id": "call_1", "content": "Done"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_of_a_namespace_names_it_and_is_found_again(
    desk: Desk, engine: ScriptedEngine, streamed: bool
) -> None:
    engine.script = called("multi_agent_v1__shell", "{}")
    (item,) = (await respond(desk, streamed, input="x")).output
    assert (item.type, item.name, item.namespace) == ("function_call", "shell", "multi_agent_v1")
    result = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
    await respond(desk, streamed, input=[item.model_dump(exclude_none=True), result])
    assert engine.requests[-1]["messages"][0]["tool_calls"][0]["function"]["name"] == "multi_agent_v1__shell"


def test_items_without_text_are_skipped_and_earlier_ones_found_by_their_id() -> None:
    history = TokenHistory(items={"msg_1": {"type": "message", "role": "assistant", "content": "done"}})
    items = [
        {"role": "developer", "content": "a"},
        {"role": "developer", "content": "b"},
        USER,
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"type": "compaction", "encrypted_content": "gAAA"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "item_reference", "id": "msg_1"},
    ]
    call = chat_of_response(history, input=items, instructions="i")
    assert [message["role"] for message in call.body["messages"]] == ["system"] * 3 + ["user", "assistant"]
    adapted = adapt_messages(call.body["messages"], ModelFormat())
    assert adapted[0] == {"role": "system", "content": "i\n\na\n\nb"} and len(adapted) == 3
    with pytest.raises(ValueError, match="no response here has that item"):
        chat_of_response(history, input=[{"type": "item_reference", "id": "msg_2"}])


@pytest.mark.parametrize(
    ("choice", "functions", "chosen"),
    [
        ({"mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}, ["apply_patch"], "required"),
        (
            {"mode": "auto", "tools": [{"type": "namespace", "name": "multi_agent_v1"}, {"type": "web_search"}]},
            ["spawn_agent", "multi_agent_v1__shell"],
            "auto",
        ),
        ({"mode": "auto", "tools": [{"type": "web_search"}]}, [], None),
    ],
)
def test_allowed_tools_are_the_ones_that_may_be_called(choice: Any, functions: list[str], chosen: str | None) -> None:
    body = chat_of_response(input="x", tools=CODEX_TOOLS, tool_choice={"type": "allowed_tools", **choice}).body
    assert [tool["function"]["name"] for tool in body.get("tools", ())] == functions
    assert body.get("tool_choice") == chosen


def test_what_a_tool_gives_back_is_kept_or_noted() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    pdf = {"type": "document", "title": "a.pdf", "source": {"type": "base64", "media_type": "application/pdf"}}
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}}
    blocks = [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a"}, image]},
        {"type": "tool_result", "tool_use_id": "2", "is_error": True, "content": [{"type": "text", "text": "no file"}]},
        {"type": "tool_result", "tool_use_id": "3", "content": [pdf, text]},
    ]
    used = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "text", "text": "so"}]
    body = {"messages": [USER, {"role": "assistant", "content": used}, {"role": "user", "content": blocks}]}
    messages = chat_of_messages(body, TokenHistory(), MessagesTools(()))["messages"]
    assert messages[1] == {"role": "assistant", "content": "so"}
    adapted = adapt_messages(messages, ModelFormat(reads_images=False))
    assert [message["content"] for message in adapted[2:]] == [
        "a\n[image left out: this model reads text only]",
        "Error: no file",
        "[document a.pdf left out: this model reads text only]\nplain",
    ]
    assert adapt_messages(messages, ModelFormat())[2]["content"][1]["image_url"]["url"] == PNG
    output = [{"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": PNG}]
    item = {"type": "function_call_output", "call_id": "1", "output": output}
    assert chat_of_response(input=[item]).body["messages"][0]["content"][1]["image_url"]["url"] == PNG


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "null", '{"a": 1}{"b": 2}', "x"])
def test_a_malformed_call_comes_back_as_sampled_and_is_rendered(arguments: str) -> None:
    history = TokenHistory()
    history.add_calls({"tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": arguments}}]})
    block = {"type": "tool_use", "id": "call_1", "name": "f", "input": input_of(arguments)}
    body = {"messages": [USER, {"role": "assistant", "content": [block]}]}
    messages = chat_of_messages(body, history, MessagesTools(()))["messages"]
    function = messages[1]["tool_calls"][0]["function"]
    assert function["arguments"] == arguments
    (_, adapted) = adapt_messages(messages, ModelFormat())
    rendered = json.loads(adapted["tool_calls"][0]["function"]["arguments"])
    assert isinstance(rendered, dict) and arguments in rendered.values()


CONVERSATIONS: dict[str, list[Any]] = {
    "a reminder amid": [
        {"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "a"}, OTHER,
        {"role": "system", "content": "reminder"},
    ],
    "a reminder after a tool": [
        USER, {"role": "assistant", "content": "a"}, {"role": "tool", "tool_call_id": "1", "content": "t"},
        {"role": "system", "content": "reminder"},
    ],
    "a reminder after an answer": [
        USER, {"role": "assistant", "content": "a"}, {"role": "system", "content": "reminder"}, OTHER,
    ],
    "two of developers and of users": [
        {"role": "developer", "content": "s"}, {"role": "developer", "content": "reminder"}, USER, OTHER,
    ],
}  # fmt: skip


def format_of(template: str) -> ModelFormat:
    """As `ModelFormats` finds it."""

    def has(field: str) -> bool:
        try:
            first, second = (render(template, messages) for messages in probes()[field])
        except jinja2.TemplateError:
            return False
        return first != second

    fields = {name: has(name) for name in ModelFormat.__dataclass_fields__ if name != "reads_images"}
    return ModelFormat(**fields, reads_images=False)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_message_is_rendered_by_every_template_and_earlier_turns_stay(name: str, template: str) -> None:
    messages, model_format = CONVERSATIONS[name], format_of(TEMPLATES[template])
    text = bytes(render(TEMPLATES[template], adapt_messages(messages, model_format))).decode()
    for message in messages:
        assert message["content"] in text
    answers = [number + 1 for number, message in enumerate(messages) if message["role"] == "assistant"]
    for end in answers:
        before = adapt_messages(messages[:end], model_format)
        assert adapt_messages(messages, model_format)[: len(before)] == before


def calling(text: str | None, *arguments: str) -> dict[str, Any]:
    """An answer that calls a function for each of the arguments."""
    calls = [
        {"id": f"callcall{number}", "type": "function", "function": {"name": "shell", "arguments": each}}
        for number, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def result(number: int, text: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"callcall{number}", "content": text}


TOOL_CHATS: dict[str, tuple[list[Any], list[str]]] = {
    "one call": ([USER, calling("looking", '{"command": "ls"}'), result(0, "a.py")], ["looking", "ls", "a.py"]),
    "two calls": (
        [USER, calling("", '{"command": "ls"}', '{"command": "pwd"}'), result(0, "a.py"), result(1, "root"), OTHER],
        ["ls", "pwd", "a.py", "root", "and test it"],
    ),
    "arguments cut off": ([USER, calling("", '{"command": "l'), result(0, "no JSON")], ["command", "no JSON"]),
    "a result of parts": (
        [USER, calling("", '{"command": "ls"}'), result(0, [{"type": "text", "text": "a.py"}]), OTHER],
        ["ls", "a.py", "and test it"],
    ),
}
"""Chats, and what the model must be able to read of each."""


@pytest.mark.parametrize("template", ["strict", "anywhere", "contents", "three roles"])
@pytest.mark.parametrize("name", TOOL_CHATS)
def test_calls_and_results_of_tools_are_rendered_by_every_template(name: str, template: str) -> None:
    (messages, texts), model_format = TOOL_CHATS[name], format_of(TEMPLATES[template])
    adapted = adapt_messages(messages, model_format)
    rendered = bytes(render(TEMPLATES[template], adapted)).decode()
    assert [text for text in texts if text not in rendered] == []
    assert needed_fields(messages) >= {"renders_tool_calls", "renders_tool_results"}
    for end in (2, 3):
        before = adapt_messages(messages[:end], model_format)
        assert adapted[: len(before)] == before


@pytest.mark.parametrize("template", [*TEMPLATES.values(), HERMES])
def test_results_are_read_in_the_order_of_their_calls(template: str) -> None:
    """Results come as tools end; a template without ids would give each to the other call."""
    asking, first, second = calling("", '{"command": "ls"}', '{"command": "pwd"}'), result(0, "a.py"), result(1, "root")
    again = [calling("", '{"command": "pwd"}'), result(0, "elsewhere")]
    adapted = adapt_messages([USER, asking, second, first, *again], format_of(template))
    assert adapted == adapt_messages([USER, asking, first, second, *again], format_of(template))
    foreign = {**result(0, "of nothing"), "tool_call_id": "unheard_of"}
    for odd in ([USER, second, first], [USER, asking, second, foreign, first], [USER, asking, second, USER, first]):
        assert adapt_messages(odd, ModelFormat()) == odd


def test_calls_become_text_as_the_engines_parser_reads_them() -> None:
    model_format = ModelFormat(renders_tool_calls=False, renders_tool_results=False)
    messages = [USER, calling("looking", '{"command": "ls"}'), result(0, "a.py")]
    assert adapt_messages(messages, model_format)[1:] == [
        {
            "role": "assistant",
            "content": 'looking\n<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\na.py\n</tool_response>"},
    ]
    assert adapt_messages(messages, ModelFormat()) == messages


async def test_a_chat_whose_template_leaves_calls_out_reaches_the_engine_as_text(bus: Bus) -> None:
    messages: Any = [USER, calling(None, '{"command": "ls"}'), result(0, "a.py")]
    async with RenderingEngine(TEMPLATES["three roles"]).serving(bus) as engine, opened(bus) as desk:
        await desk.openai.chat.completions.create(model="policy", messages=messages)
    sent = engine.requests[-1]["messages"]
    assert "<tool_call>" in sent[1]["content"] and sent[2]["role"] == "user" and "a.py" in sent[2]["content"]
    assert json.loads(desk.calls[-1].request)["messages"][1]["tool_calls"], "the request is on record as it was made"


@pytest.mark.parametrize(("template", "role"), [(STRICT, "user"), (ANYWHERE, "system"), (ALTERNATING, "user")])
async def test_a_templates_form_is_found_out_once(bus: Bus, template: str, role: str) -> None:
    messages: Any = [USER, {"role": "assistant", "content": "a"}, {"role": "system", "content": "reminder"}, USER]
    async with RenderingEngine(template).serving(bus) as engine, opened(bus) as desk:
        for _ in range(3):
            await desk.openai.chat.completions.create(model="policy", messages=messages)
            assert engine.requests[-1]["messages"][2]["role"] == role
        assert isinstance(engine, RenderingEngine) and engine.num_rendered <= 4
        picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]
        await desk.openai.chat.completions.create(model="policy", messages=picture)
    assert engine.requests[-1]["messages"] == [
        {"role": "user", "content": "[image left out: this model reads text only]"}
    ]
    assert "image_url" in desk.calls[-1].request, "the request is on record as it was made"


async def test_a_picture_that_the_model_reads_leaves_the_call_out_of_training(
    desk: Desk, engine: ScriptedEngine
) -> None:
    picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]
    await desk.openai.chat.completions.create(model="policy", messages=picture)
    assert engine.requests[0]["messages"] == picture
    (span,) = [span for span in desk.spans if "images" in span.status_message]
    assert not desk.calls[0].response_ids and span.status == "error"


@pytest.mark.parametrize("limit", [40, 8_000])
async def test_a_limit_beyond_the_context_is_what_the_prompt_leaves(bus: Bus, limit: int) -> None:
    async with RenderingEngine(ANYWHERE, max_model_len=60).serving(bus) as engine, opened(bus) as desk:
        await desk.anthropic.messages.create(model="policy", max_tokens=limit, messages=[USER])
    prompt = len(render(ANYWHERE, [USER]))
    assert engine.requests[-1].get("max_tokens") == (60 - prompt if limit < 60 else None)
    assert json.loads(desk.calls[0].request)["max_tokens"] == limit and desk.calls[0].response_ids


async def test_a_full_context_is_told_in_the_words_that_agents_know(bus: Bus) -> None:
    long = {"role": "user", "content": "x" * 99}
    async with RenderingEngine(ANYWHERE, max_model_len=60).serving(bus), opened(bus) as desk:
        with pytest.raises(openai.BadRequestError) as chat:
            await desk.openai.chat.completions.create(model="policy", messages=[long], max_tokens=5)  # type: ignore[list-item]
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 60 maximum"):
            await desk.anthropic.messages.create(model="policy", messages=[long], max_tokens=5)  # type: ignore[list-item]
        stream = await desk.openai.responses.create(
            model="policy",
            input=[long],
            max_output_tokens=5,
            stream=True,  # type: ignore[list-item, call-overload]
        )
        events = [event async for event in stream]
    assert chat.value.code == "context_length_exceeded"
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "context_length_exceeded"


@asynccontextmanager
async def waiting(desk: Desk, monkeypatch: pytest.MonkeyPatch, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream of a coding agent's, as soon as its head is there."""
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.05)
    tool = {"name": "f", "parameters": {"type": "object"}}
    tools: list[Any] = [{"type": "function", "function": tool}]
    if path == "messages":
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
    elif path == "responses":
        tools = [{"type": "function", **tool}]
    body = {"model": "policy", "stream": True, "tools": tools, "messages": [USER]}
    if path == "responses":
        body["input"] = body.pop("messages")
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{desk.url}/v1/{path}", json=body, headers={"x-api-key": desk.key}) as response,
    ):
        yield response


class SlowEngine(ScriptedEngine):
    """Answers once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def answer(self, request: Any) -> Any:
        await self.may_answer.wait()
        return await super().answer(request)


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
@pytest.mark.parametrize("fault", ["", "400"])
async def test_a_stream_says_that_it_lives_before_the_engine_does(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, path: str, fault: str
) -> None:
    async with (
        SlowEngine().serving(bus) as engine,
        opened(bus) as desk,
        waiting(desk, monkeypatch, path) as response,
    ):
        assert response.status == 200
        first = await response.content.readline()
        assert first.startswith((b":", b"event: ping"))
        assert isinstance(engine, SlowEngine)
        engine.faults = [fault] if fault else []
        engine.may_answer.set()
        rest = (await response.read()).decode()
    assert ("error" in rest.replace('"error":null', "")) == bool(fault)
    assert len(desk.calls) == (0 if fault else 1)


def test_a_name_of_the_agents_own_is_a_models() -> None:
    aliases = {"claude-haiku-*": "policy:small", "*": "policy"}
    known = {"policy", "judge"}
    for name, model in {"claude-haiku-4-5": "policy:small", "gpt-6": "policy", "judge": "judge"}.items():
        assert apply_alias(name, aliases, known) == model
    assert apply_alias("policy:writer", aliases, known) == "policy:writer"
    assert apply_alias("gpt-6", {}, known) == "gpt-6"


async def test_an_alias_answers_and_its_role_is_recorded(bus: Bus, engine: ScriptedEngine) -> None:
    async with opened(bus, model_aliases={"claude-*": "policy:small"}) as desk:
        answer = await desk.anthropic.messages.create(model="claude-haiku-4-5", max_tokens=5, messages=[USER])
        assert (await desk.anthropic.models.retrieve("claude-haiku-4-5")).id == "claude-haiku-4-5"
    assert answer.model == "claude-haiku-4-5"
    assert (desk.calls[0].model, desk.calls[0].role) == ("policy", "small")


def test_an_answer_is_the_same_however_its_client_sends_it_back() -> None:
    history, call = TokenHistory(), {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    answer = {"role": "assistant", "content": "so\n", "reasoning": "hm", "tool_calls": [call]}
    tools = [{"type": "function", "function": {"name": "f"}}]

    def request(messages: list[Any]) -> ChatRequest:
        return ChatRequest.parse({"model": "policy", "messages": messages, "tools": tools}, chat=True)

    history.add(request([USER]), answer, [1, 2], [1])
    spaced = {**call, "function": {"name": "f", "arguments": '{"a": 1}'}}
    same: list[dict[str, Any]] = [
        {"content": [{"type": "text", "text": "so"}]}, {"name": "coder"}, {"tool_calls": [spaced]},
        {"reasoning": None, "reasoning_content": "hm"}, {"refusal": None},
    ]  # fmt: skip
    for change in same:
        assert history.longest_prefix(request([USER, {**answer, **change}, USER])) is not None, change
    others: list[dict[str, Any]] = [{"content": "no"}, {"tool_calls": []}, {"reasoning": "other"}]
    for change in others:
        assert history.longest_prefix(request([USER, {**answer, **change}, USER])) is None, change


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": [{"type": "text"}]}, {"role": "system", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": None}]}],
        [{"role": "system"}, {"role": "system", "content": [7]}, "x"],
    ],
)
def test_content_of_no_sensible_form_is_left_to_the_engine(messages: list[Any]) -> None:
    assert adapt_messages(messages, ModelFormat(reads_images=False, renders_system=False))


async def test_a_node_that_fails_once_decides_nothing_about_the_template(bus: Bus) -> None:
    class Busy(RenderingEngine):
        async def tokenize(self, request: Any) -> Any:
            if not self.num_rendered:
                self.num_rendered += 1
                return web.json_response({}, status=503)
            return await super().tokenize(request)

    messages: Any = [USER, {"role": "assistant", "content": "a"}, {"role": "system", "content": "reminder"}]
    async with Busy(STRICT).serving(bus) as engine, opened(bus) as desk:
        with suppress(openai.BadRequestError):
            await desk.openai.chat.completions.create(model="policy", messages=messages)
        await desk.openai.chat.completions.create(model="policy", messages=messages)
    assert engine.requests[-1]["messages"][-1] == {"role": "user", "content": "reminder"}


async def test_an_unknown_model_ends_a_stream_that_has_begun(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedEngine().serving(bus, model="other"), opened(bus) as desk:
        monkeypatch.setattr(desk.gateway.upstream, "_known_models", {"foo"})
        gone = asyncio.Event()
        members = desk.gateway.upstream.known_models

        def known() -> set[str]:
            return members() - ({"foo"} if gone.is_set() else set())

        monkeypatch.setattr(desk.gateway.upstream, "known_models", known)
        monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.05)
        body = {"model": "foo", "stream": True, "messages": [USER]}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{desk.url}/v1/chat/completions", json=body, headers={"x-api-key": desk.key}) as response,
        ):
            assert (await response.content.readline()).startswith(b":")
            gone.set()
            assert "model 'foo' is not served" in (await response.read()).decode()


def test_an_answer_to_a_picture_is_not_given_as_tokens() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}
    for messages, is_text in (([USER], True), ([USER, picture], False)):
        call = ChatRequest.parse({"model": "policy", "messages": messages}, chat=True)
        assert continuation.can_splice(call, {}) is continuation.can_resume(call, {}) is is_text


def test_a_tool_of_an_unknown_type_is_refused() -> None:
    assert chat_of_response(input="x", tools=[{"type": "web_search_preview_2027_01_31"}]).body.get("tools") is None
    with pytest.raises(ValueError, match="a tool of type 'functoin' is not known here"):
        chat_of_response(input="x", tools=[{"type": "functoin", "name": "f"}])


def test_deeply_nested_arguments_are_the_agents_to_read() -> None:
    arguments = "[" * 100_000
    assert input_of(arguments) == {"arguments": arguments} and custom_input(arguments) == arguments
