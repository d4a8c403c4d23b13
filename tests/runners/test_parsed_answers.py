"""An agent that asks for no stream gets what the engine's parsers make of the whole text, where they have a say."""

import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from lightningbus.bus.client import Bus
from tests.runners.conftest import ANSWER, PROMPT, ScriptedEngine
from tests.runners.test_dialects import SAYING, TOOL, Desk, opened

TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": TOOL}}]
PARSED = {
    "role": "assistant",
    "reasoning": "Hm.",
    "tool_calls": [{"id": "call_9", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
}


class ParsingEngine(ScriptedEngine):
    """Says what it parses, and parses every answer as `PARSED`."""

    def __init__(self, *parsers: str) -> None:
        super().__init__()
        self.parsers = list(parsers)
        self.parse_faults: list[int] = []
        self.parsed: list[dict[str, Any]] = []

    async def parse(self, request: web.Request) -> web.Response:
        self.parsed.append(body := await request.json())
        if self.parse_faults:
            return web.json_response({"error": {"message": "no"}}, status=self.parse_faults.pop(0))
        choices = [
            {"index": choice["index"], "message": PARSED, "finish_reason": "tool_calls"} for choice in body["choices"]
        ]
        text = f"data: {json.dumps({'choices': choices})}\n\ndata: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    def routes(self, app: web.Application) -> None:
        super().routes(app)
        app.router.add_post("/v1/chat/completions/parse", self.parse)

    def status(self) -> dict[str, Any]:
        return {"parsers": self.parsers}


@asynccontextmanager
async def opened_with(bus: Bus, *parsers: str) -> AsyncIterator[tuple[ParsingEngine, Desk]]:
    async with ParsingEngine(*parsers).serving(bus) as engine, opened(bus) as desk:
        assert isinstance(engine, ParsingEngine)
        yield engine, desk


async def ask(desk: Desk, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": "x"}]
    return await desk.openai.chat.completions.create(model="policy", messages=messages, **fields)


async def test_the_agent_gets_and_the_record_has_what_was_parsed_with_the_tokens_as_sampled(bus: Bus) -> None:
    async with opened_with(bus, "tool") as (engine, desk):
        engine.script = SAYING
        (choice,) = (await ask(desk, tools=TOOLS, stop=["x"])).choices
        (request,) = engine.parsed
        (call,) = desk.calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls[0].function.arguments == '{"a": 1}' and choice.message.reasoning == "Hm."
    assert json.loads(call.response) == {"content": None, **PARSED} and call.finish_reason == "tool_calls"
    assert call.response_ids == array("I", [10, 11, 12]).tobytes() and len(call.logprobs) == 12
    assert request["prompt_token_ids"] == PROMPT
    assert request["choices"] == [{"index": 0, "token_ids": [10, 11, 12], "finish_reason": "stop", "stop_reason": None}]
    assert (request["request"]["tools"], request["request"]["stop"]) == (TOOLS, ["x"])


async def test_messages_and_responses_are_made_of_it_too(bus: Bus) -> None:
    async with opened_with(bus, "tool") as (engine, desk):
        engine.script = SAYING
        tools: Any = [{"name": "add", "input_schema": TOOL}]
        messages: Any = [{"role": "user", "content": "x"}]
        message = await desk.anthropic.messages.create(model="policy", messages=messages, tools=tools, max_tokens=9)
        tools = [{"type": "function", "name": "add", "parameters": TOOL}]
        response = await desk.openai.responses.create(model="policy", input="x", tools=tools)
    assert [block.type for block in message.content] == ["thinking", "tool_use"] and message.stop_reason == "tool_use"
    assert [item.type for item in response.output] == ["reasoning", "function_call"]


@pytest.mark.parametrize(
    ("parsers", "fields", "num_parsed"),
    [
        ([], {"tools": TOOLS}, 0),
        (["tool"], {}, 0),
        (["tool"], {"tools": TOOLS, "stream": True}, 0),
        (["reasoning"], {}, 1),
        (["reasoning", "tool"], {"tools": TOOLS}, 1),
    ],
)
async def test_only_an_answer_that_a_parser_has_a_say_in_takes_another_request(
    bus: Bus, parsers: list[str], fields: dict[str, Any], num_parsed: int
) -> None:
    async with opened_with(bus, *parsers) as (engine, desk):
        engine.script = SAYING
        answer = await ask(desk, **fields)
        if fields.get("stream"):
            _ = [chunk async for chunk in answer]
        assert len(engine.parsed) == num_parsed


async def test_an_answer_that_broke_off_is_parsed_as_one(bus: Bus) -> None:
    async with opened_with(bus, "reasoning") as (engine, desk):
        engine.faults = ["break"]
        await ask(desk)
        (request,) = engine.parsed
        (call,) = desk.calls
    assert len(engine.requests) == 2
    assert (request["prompt_token_ids"], request["choices"][0]["token_ids"]) == (PROMPT, ANSWER)
    assert [run.version for run in call.weight_versions] == [3, 4] and json.loads(call.response)["reasoning"] == "Hm."


async def test_parsing_is_asked_for_again_while_the_node_is_busy(bus: Bus) -> None:
    async with opened_with(bus, "tool") as (engine, desk):
        engine.script, engine.parse_faults = SAYING, [503, 503]
        (choice,) = (await ask(desk, tools=TOOLS)).choices
        assert len(engine.parsed) == 3 and len(engine.requests) == 1
    assert choice.message.tool_calls


async def test_an_answer_that_the_parsers_fail_at_is_what_was_streamed(bus: Bus) -> None:
    async with opened_with(bus, "tool") as (engine, desk):
        engine.script, engine.parse_faults = SAYING, [400]
        (choice,) = (await ask(desk, tools=TOOLS)).choices
    assert (choice.message.content, choice.finish_reason) == ("fourteen", "stop")


async def test_every_choice_is_parsed(bus: Bus) -> None:
    async with opened_with(bus, "reasoning") as (engine, desk):
        engine.choices = 2
        choices = (await ask(desk, n=2)).choices
        assert [choice["index"] for choice in engine.parsed[0]["choices"]] == [0, 1]
    assert [choice.message.reasoning for choice in choices] == ["Hm.", "Hm."]
