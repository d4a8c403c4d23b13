"""Text and arguments of tools come to a streaming agent while they are sampled, where parsers can read a rest."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from aiohttp import web

from lightningbus.bus.client import Bus
from tests.polling import HANG_SECONDS
from tests.runners.conftest import PROMPT
from tests.runners.test_dialects import TOOL, Desk, opened
from tests.runners.test_joined_message import piece
from tests.runners.test_parsed_answers import ParsingEngine

WAIT = {"waits": True}
FIRST, REST = '{"a": "one', ' two"}'
SCRIPT: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Let me see."},
    piece(0, "call_1", "add", FIRST),
    {**piece(0, text=REST), **WAIT},
    {"finish_reason": "tool_calls"},
]
WHOLE = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [{"id": "other", "type": "function", "function": {"name": "add", "arguments": FIRST + REST}}],
}
TEXT = {"role": "assistant", "content": "Let me see.<tool_call>"}


class PacedEngine(ParsingEngine):
    """Waits before a line of the script that says so; breaks off there if that is its fault."""

    def __init__(self, parsed: dict[str, Any] | None = WHOLE) -> None:
        super().__init__("tool")
        self.answer_parsed = parsed
        self.may_go_on = asyncio.Event()
        self.breaks = False

    async def parse(self, request: web.Request) -> web.Response:
        self.parsed.append(await request.json())
        if self.answer_parsed is None:
            return web.json_response({"error": {"message": "no"}}, status=400)
        choice = {"index": 0, "message": self.answer_parsed, "finish_reason": "tool_calls"}
        text = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    async def _play(self, response: web.StreamResponse) -> web.StreamResponse:
        for token, line in enumerate(self.script, 10):
            if line.get("waits"):
                await self.may_go_on.wait()
                if self.breaks:
                    self.breaks = False
                    raise ConnectionError
            delta = {key: value for key, value in line.items() if key not in ("finish_reason", "waits")}
            fields = {"index": 0, "token_ids": [token], "delta": delta, "finish_reason": line.get("finish_reason")}
            fields["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}]}
            event = {"weight_version": self.version, "id": f"chatcmpl-{1:032x}", "object": "chat.completion.chunk"}
            event |= {"model": "policy", "created": 1, "choices": [fields], "prompt_token_ids": PROMPT}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def paced(bus: Bus, engine: PacedEngine, script: list[dict[str, Any]] = SCRIPT) -> AsyncIterator[Desk]:
    engine.script = script
    async with engine.serving(bus), opened(bus) as desk, asyncio.timeout(HANG_SECONDS):
        yield desk


CHAT: dict[str, Any] = {
    "model": "policy",
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": TOOL}}],
}


async def stream_chat(desk: Desk, engine: PacedEngine, **fields: Any) -> Any:
    """The message that deltas add up to; the engine goes on once the first of the arguments have come."""
    message: dict[str, Any] = {"content": "", "id": "", "name": "", "arguments": "", "reason": None}
    async for chunk in await desk.openai.chat.completions.create(**CHAT, **fields, stream=True):
        (choice,) = chunk.choices
        message["content"] += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            message["id"] += part.id or ""
            message["name"] += part.function.name or ""
            message["arguments"] += part.function.arguments or ""
        message["reason"] = choice.finish_reason or message["reason"]
        if message["arguments"] == FIRST:
            engine.may_go_on.set()
    return message


async def stream_response(desk: Desk, engine: PacedEngine, tools: Any = None) -> list[Any]:
    """Events of a response; the engine goes on once the first of the arguments have come."""
    tools = tools or [{"type": "function", "name": "add", "parameters": TOOL}]
    events = []
    async for event in await desk.openai.responses.create(model="policy", input="x", tools=tools, stream=True):
        events.append(event)
        if event.type == "response.function_call_arguments.delta" and event.delta == FIRST:
            engine.may_go_on.set()
    return events


async def stream_message(desk: Desk, engine: PacedEngine, is_eager: bool) -> tuple[list[str], Any]:
    """Pieces of a call's input, and the final message."""
    pieces = []
    tools: Any = [{"name": "add", "input_schema": TOOL, "eager_input_streaming": is_eager}]
    messages: Any = [{"role": "user", "content": "x"}]
    async with desk.anthropic.messages.stream(model="policy", messages=messages, tools=tools, max_tokens=9) as stream:
        async for event in stream:
            if event.type == "content_block_start" and event.content_block.type == "tool_use" and not is_eager:
                engine.may_go_on.set()
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                pieces.append(event.delta.partial_json)
                engine.may_go_on.set()
        return pieces, await stream.get_final_message()


async def test_a_chat_has_arguments_as_they_come(bus: Bus) -> None:
    engine = PacedEngine()
    async with paced(bus, engine) as desk:
        message = await stream_chat(desk, engine)
        (call,) = desk.calls
    assert message == {
        "content": "Let me see.", "id": "call_1", "name": "add", "arguments": FIRST + REST, "reason": "tool_calls",
    }  # fmt: skip
    (function,) = json.loads(call.response)["tool_calls"]
    assert (function["id"], function["function"]["arguments"]) == ("call_1", FIRST + REST)


async def test_a_response_has_arguments_as_they_come(bus: Bus) -> None:
    engine = PacedEngine()
    async with paced(bus, engine) as desk:
        events = await stream_response(desk, engine)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert deltas == [FIRST, REST]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[-6:] == [
        "output_item.added", *["function_call_arguments.delta"] * 2, "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert [item.type for item in events[-1].response.output] == ["message", "function_call"]


async def test_a_message_has_arguments_as_they_come_where_its_tool_is_eager(bus: Bus) -> None:
    for is_eager, expected in ((True, [FIRST, REST]), (False, [FIRST + REST])):
        engine = PacedEngine()
        async with paced(bus, engine) as desk:
            pieces, message = await stream_message(desk, engine, is_eager)
        assert pieces == expected
        assert [block.type for block in message.content] == ["text", "tool_use"] and message.stop_reason == "tool_use"
        assert message.content[1].input == {"a": "one two"}


async def test_a_call_that_turns_out_malformed_stays_as_it_was_sampled(bus: Bus) -> None:
    engine = PacedEngine()
    async with paced(bus, engine, [*SCRIPT[:2], {**piece(0, text='"}}'), **WAIT}, {"finish_reason": "stop"}]) as desk:
        message = await stream_chat(desk, engine)
        (call,) = desk.calls
    assert (message["arguments"], message["content"], message["reason"]) == (FIRST + '"}}', "Let me see.", "stop")
    assert json.loads(call.response)["tool_calls"][0]["function"]["arguments"] == FIRST + '"}}'


async def test_a_message_never_has_arguments_that_its_client_fails_at(bus: Bus) -> None:
    """An eager tool's are cut before the fault. A whole call that is malformed is in an object."""
    for is_eager, expected in ((True, [FIRST]), (False, [json.dumps({"arguments": FIRST + '", x'})])):
        engine = PacedEngine()
        script = [*SCRIPT[:2], {**piece(0, text='", x'), **WAIT}, {"finish_reason": "stop"}]
        async with paced(bus, engine, script) as desk:
            pieces, message = await stream_message(desk, engine, is_eager)
        assert pieces == expected and message.stop_reason == "tool_use"


async def test_a_custom_tools_text_comes_once_it_is_whole(bus: Bus) -> None:
    engine = PacedEngine()
    script = [SCRIPT[0], piece(0, "c", "add", '{"input": "a'), piece(0, text='b"}'), {"finish_reason": "tool_calls"}]
    async with paced(bus, engine, script) as desk:
        events = await stream_response(desk, engine, [{"type": "custom", "name": "add"}])
    assert [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"] == ["ab"]
    assert events[-1].response.output[1].input == "ab"


async def break_off(desk: Desk, engine: PacedEngine) -> Any:
    engine.breaks = True
    return await stream_chat(desk, engine)


async def test_a_call_that_breaks_off_goes_on_where_it_was(bus: Bus) -> None:
    """Its rest is sampled as tokens, and its text is parsed as one; no token is sampled twice."""
    engine = PacedEngine()
    async with paced(bus, engine) as desk:
        message = await break_off(desk, engine)
        (call,) = desk.calls
    whole, rest = engine.requests
    assert "tools" in whole and rest["prompt"] == [*PROMPT, 10, 11]
    (parsed,) = engine.parsed
    tokens = parsed["choices"][0]["token_ids"]
    assert tokens[:2] == [10, 11] and call.response_ids == array("I", tokens).tobytes()
    assert (message["arguments"], message["reason"]) == (FIRST + REST, "tool_calls")


@pytest.mark.parametrize("parsed", [None, TEXT])
async def test_a_call_that_breaks_off_and_whose_rest_is_unknown_is_our_failure(
    bus: Bus, parsed: dict[str, Any] | None
) -> None:
    engine = PacedEngine(parsed)
    async with paced(bus, engine) as desk:
        with pytest.raises(openai.APIError, match="cannot be parsed"):
            await break_off(desk, engine)
        active = desk.gateway.slots[0].rollout
        assert active is not None and "cannot be parsed" in active.recorder.infra_error


@pytest.mark.parametrize(("parsers", "fields"), [(["tool"], {"tool_choice": "required"}), ([], {})])
async def test_an_answer_that_might_begin_anew_comes_when_it_is_whole(
    bus: Bus, parsers: list[str], fields: dict[str, Any]
) -> None:
    """Only the engine that began it can end it: it breaks off, and another answer takes its place."""
    engine = PacedEngine()
    engine.parsers, engine.breaks = parsers, True
    engine.may_go_on.set()
    async with paced(bus, engine) as desk:
        message = await stream_chat(desk, engine, **fields)
        (call,) = desk.calls
    assert len(engine.requests) == 2 and all("tools" in request for request in engine.requests)
    assert (message["content"], message["arguments"]) == ("Let me see.", FIRST + REST)
    assert call.response_ids == array("I", [10, 11, 12, 13]).tobytes()
