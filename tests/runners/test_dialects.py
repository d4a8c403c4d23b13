"""The vendors' own clients at the gateway: what they ask reaches the engine as a chat, and its answer suits them."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.protocol.dialects.anthropic_request import chat as chat_of_messages
from lightningbus.runners.protocol.dialects.anthropic_tools import MessagesTools
from lightningbus.runners.protocol.dialects.responses_request import chat as chat_of_response
from lightningbus.runners.protocol.dialects.responses_tools import ResponsesTools
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.spans import ModelCall, Span
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls
from tests.runners.conftest import PROMPT, ScriptedEngine, task

TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALLING: list[dict[str, Any]] = [
    {"role": "assistant", "reasoning": "I must "},
    {"reasoning": "count."},
    {"content": "Let me "},
    {"content": "see."},
    {
        "tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}
        ]
    },
    {},  # the parser waits: a token without anything to say
    {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    {"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "sub", "arguments": "{}"}}]},
    {"finish_reason": "tool_calls"},
]
SAYING = [{"role": "assistant", "content": "four"}, {"content": "teen"}, {"content": "", "finish_reason": "stop"}]


class Desk:
    """Both vendors' clients, and what was recorded of them."""

    def __init__(self, gateway: Gateway, attempt: AttemptRecorder, environment: dict[str, str]) -> None:
        (slot,) = gateway.slots
        self.gateway, self._attempt = gateway, attempt
        self.environment = environment
        """Variables that the runner gives to an agent's process."""
        self.url, self.key = url, key = slot.base_url, slot.key
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self.anthropic = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)

    @property
    def root(self) -> str:
        return self._attempt.root_id

    @property
    def spans(self) -> list[Span]:
        self._attempt.flush()
        return [span for batch in self._attempt.outbox for span in batch.spans]

    @property
    def calls(self) -> list[ModelCall]:
        return expand_calls([span.call for span in self.spans if span.call is not None])


@asynccontextmanager
async def opened(bus: Bus, seconds: float = 20, **settings: Any) -> AsyncIterator[Desk]:
    """A gateway with a rollout that has these seconds until its deadline."""
    attempt = AttemptRecorder(task(model="policy"), 1, "runner")

    async def send(attempt: AttemptRecorder, seconds: float) -> None:
        """Kept, for the test to look at."""

    async with bus.fleet("inference") as fleet, Gateway(fleet, send, 1, **settings) as gateway:
        while not fleet.members():
            await fleet.wait_for_change()
        (slot,) = gateway.slots
        environment = slot.environment()
        slot.begin(attempt, task(model="policy"), asyncio.get_running_loop().time() + seconds)
        desk = Desk(gateway, attempt, environment)
        try:
            yield desk
        finally:
            await desk.openai.close()
            await desk.anthropic.close()


@pytest.fixture
async def desk(bus: Bus, engine: ScriptedEngine) -> AsyncIterator[Desk]:
    async with opened(bus) as desk:
        yield desk


def recorded(call: ModelCall, script: list[dict[str, Any]]) -> None:
    """Every token of the script is there, whatever of it the agent was shown."""
    assert call.prompt_ids == array("I", PROMPT).tobytes()
    assert call.response_ids == array("I", range(10, 10 + len(script))).tobytes()
    assert array("f", call.logprobs).tolist() == [-0.5] * len(script)
    assert [(run.version, run.start, run.end) for run in call.weight_versions] == [(3, 0, len(script))]


async def asked_for_a_response(desk: Desk, streamed: bool, **more: Any) -> Any:
    if not streamed:
        return await desk.openai.responses.create(**more)
    async with desk.openai.responses.stream(**more) as stream:
        numbers = [event.sequence_number async for event in stream]
        assert numbers == list(range(len(numbers)))
        return await stream.get_final_response()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_of_thoughts_text_and_calls(desk: Desk, engine: ScriptedEngine, streamed: bool) -> None:
    engine.script = CALLING
    tool = {"type": "function", "name": "add", "description": "adds", "parameters": TOOL, "strict": True}
    response = await asked_for_a_response(
        desk, streamed, model="policy:writer", instructions="Be brief.", input="1+1?", tools=[tool], tool_choice="auto",
        max_output_tokens=50, temperature=0.5, parallel_tool_calls=True,
    )  # fmt: skip
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output[0].content[0].text == "I must count."
    assert response.output_text == "Let me see."
    calls = [(item.call_id, item.name, item.arguments) for item in response.output[2:]]
    assert calls == [("call_1", "add", '{"a": 1}'), ("call_2", "sub", "{}")]
    assert (response.status, response.model, response.usage.output_tokens) == (
        "completed",
        "policy:writer",
        len(CALLING),
    )
    (request,) = engine.requests
    assert request["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    function = {"name": "add", "description": "adds", "parameters": TOOL, "strict": True}
    assert request["tools"] == [{"type": "function", "function": function}]
    assert (request["max_completion_tokens"], request["temperature"]) == (50, 0.5)
    assert "instructions" not in request and "input" not in request
    (call,) = desk.calls
    recorded(call, CALLING)
    assert call.role == "writer" and json.loads(call.response)["tool_calls"][0]["id"] == "call_1"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_goes_on_by_its_items_or_by_its_id(desk: Desk, engine: ScriptedEngine, streamed: bool) -> None:
    engine.script = CALLING
    tools = [{"type": "function", "name": name, "parameters": TOOL, "strict": False} for name in ("add", "sub")]
    first = await asked_for_a_response(desk, streamed, model="policy", input="1+1?", tools=tools)
    engine.script = SAYING
    outputs = [{"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (1, 2)]
    items = [item.to_dict() for item in first.output]
    whole = await asked_for_a_response(
        desk, streamed, model="policy", input=[{"role": "user", "content": "1+1?"}, *items, *outputs], tools=tools
    )
    short = await asked_for_a_response(
        desk, streamed, model="policy", previous_response_id=first.id, input=outputs, tools=tools
    )
    assert whole.output_text == short.output_text == "fourteen"
    _, by_items, by_id = engine.requests
    assert by_items["messages"] == by_id["messages"]
    assert [message["role"] for message in by_id["messages"]] == ["user", "assistant", "tool", "tool"]
    text = by_id["messages"][1]
    assert (text["content"], text["reasoning"]) == ("Let me see.", "I must count.")
    assert [call["function"]["name"] for call in text["tool_calls"]] == ["add", "sub"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_of_thoughts_text_and_tools(desk: Desk, engine: ScriptedEngine, streamed: bool) -> None:
    engine.script = CALLING
    more: dict[str, Any] = {
        "model": "policy", "max_tokens": 50, "system": "Be brief.", "messages": [{"role": "user", "content": "1+1?"}],
        "tools": [{"name": "add", "description": "adds", "input_schema": TOOL}], "tool_choice": {"type": "any"},
        "stop_sequences": ["END"], "extra_body": {"temperature": 0.5},
    }  # fmt: skip
    if streamed:
        async with desk.anthropic.messages.stream(**more) as stream:
            message = await stream.get_final_message()
    else:
        message = await desk.anthropic.messages.create(**more)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "I must count." and message.content[1].text == "Let me see."
    assert [(block.id, block.name, block.input) for block in message.content[2:]] == [
        ("call_1", "add", {"a": 1}), ("call_2", "sub", {})
    ]  # fmt: skip
    assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", len(CALLING))
    (request,) = engine.requests
    assert request["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    assert (request["tool_choice"], request["stop"], request["max_tokens"]) == ("required", ["END"], 50)
    assert request["tools"][0]["function"] == {"name": "add", "description": "adds", "parameters": TOOL}
    (call,) = desk.calls
    recorded(call, CALLING)


async def test_a_message_that_says_nothing_is_the_same_streamed(desk: Desk, engine: ScriptedEngine) -> None:
    hello: Any = [{"role": "user", "content": "hello"}]
    engine.script = [{"content": "", "finish_reason": "stop"}]
    plain = await desk.anthropic.messages.create(model="policy", max_tokens=5, messages=hello)
    async with desk.anthropic.messages.stream(model="policy", max_tokens=5, messages=hello) as stream:
        streamed = await stream.get_final_message()
    assert [block.type for block in plain.content] == [block.type for block in streamed.content] == ["text"]


async def test_a_call_whose_arguments_never_came_has_empty_ones(desk: Desk, engine: ScriptedEngine) -> None:
    begun = [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "add"}}]
    engine.script = [{"tool_calls": begun}, {"finish_reason": "tool_calls"}]
    hello: Any = [{"role": "user", "content": "hello"}]
    answer = await desk.openai.chat.completions.create(model="policy", messages=hello)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.to_dict()["function"] == {"name": "add", "arguments": ""}


async def test_models_and_routes_are_known_or_said_not_to_be(desk: Desk) -> None:
    assert [model.id async for model in desk.openai.models.list()] == ["policy"]
    assert (await desk.openai.models.retrieve("policy:writer")).id == "policy:writer"
    with pytest.raises(openai.NotFoundError, match="model 'other' is not served"):
        await desk.openai.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match=r"POST .*/v1/images/generations is not served") as unknown:
        await desk.openai.images.generate(model="policy", prompt="x")
    assert (unknown.value.type, unknown.value.code) == ("invalid_request_error", "unknown_url")


async def test_a_stop_sequence_and_a_length_are_told_in_both_vendors_words(desk: Desk, engine: ScriptedEngine) -> None:
    hello = [{"role": "user", "content": "hello"}]
    engine.script = [{"content": "x", "finish_reason": "stop", "stop_reason": "END"}]
    message = await desk.anthropic.messages.create(model="policy", max_tokens=5, messages=hello, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    engine.script = [{"content": "x", "finish_reason": "length"}]
    message = await desk.anthropic.messages.create(model="policy", max_tokens=1, messages=hello)
    assert message.stop_reason == "max_tokens"
    response = await desk.openai.responses.create(model="policy", input="hello", max_output_tokens=1)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_reasoning_is_recorded_also_where_the_agent_does_not_want_to_see_it(
    desk: Desk, engine: ScriptedEngine
) -> None:
    engine.script = CALLING
    hello: Any = [{"role": "user", "content": "hello"}]
    answer = await desk.openai.chat.completions.create(
        model="policy", messages=hello, extra_body={"include_reasoning": False}
    )
    assert "reasoning" not in answer.choices[0].message.to_dict()
    assert engine.requests[0]["include_reasoning"] is True
    (call,) = desk.calls
    recorded(call, CALLING)
    assert "I must count." in call.response


async def test_errors_are_said_as_the_vendor_would(desk: Desk, engine: ScriptedEngine) -> None:
    hello: Any = [{"role": "user", "content": "hello"}]
    with pytest.raises(openai.BadRequestError, match="a tool_choice of type 'mcp' is not known here"):
        choice: Any = {"type": "mcp", "server_label": "x"}
        await desk.openai.responses.create(model="policy", input="x", tool_choice=choice)
    with pytest.raises(openai.BadRequestError, match="of no response in this rollout"):
        await desk.openai.responses.create(model="policy", input="x", previous_response_id="resp_0")
    with pytest.raises(openai.NotFoundError, match="model 'other' is not served"):
        await desk.openai.responses.create(model="other", input="x")
    with pytest.raises(anthropic.NotFoundError, match="model 'other' is not served") as unknown:
        await desk.anthropic.messages.create(model="other", max_tokens=5, messages=hello)
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    engine.faults = ["400"]
    with pytest.raises(anthropic.BadRequestError) as refused:
        await desk.anthropic.messages.create(model="policy", max_tokens=5, messages=hello)
    assert refused.value.body == {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
    stranger = anthropic.AsyncAnthropic(base_url=desk.url, api_key="lb-other", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        await stranger.messages.create(model="policy", max_tokens=5, messages=hello)
    await stranger.close()
    with pytest.raises(anthropic.BadRequestError, match="does not render"):
        await desk.anthropic.messages.count_tokens(model="policy", messages=hello)
    assert not desk.calls


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"input": 1}, "no input"),
        ({"input": [1]}, "an input item is a JSON object"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "an input item of type 'item_reference'"),
        ({"input": [{"type": "robot_call"}]}, "an input item of type 'robot_call' is not known"),
        ({"input": "x", "tools": [{"name": "f"}]}, "a tool is an object with a type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "no message has the role 'robot'"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "content of type 'input_audio'"),
        ({"input": "x", "background": True}, "background needs a service that keeps state"),
        (
            {"input": "x", "tools": [{"type": "function"}], "tool_choice": {"type": "mcp"}},
            "a tool_choice of type 'mcp'",
        ),
    ],
)
def test_a_response_that_cannot_be_asked_for(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        chat_of_response(body, TokenHistory(), ResponsesTools(body.get("tools")))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "no list of messages"),
        ({"messages": [{"role": "user", "content": 1}]}, "text or a list of blocks"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "the role user or assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_addition"}]}]}, "a block of type 'tool_addition'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "a block of type 'image'"),
        (
            {"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "runs at the vendor, not here",
        ),
    ],
)
def test_a_message_that_cannot_be_asked_for(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        chat_of_messages(body, TokenHistory(), MessagesTools(body.get("tools")))


def test_a_conversation_with_tools_and_images_in_anthropics_words() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    messages = chat_of_messages(
        {
            "system": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Look:"}, image]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "Adding."},
                        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "2"}]},
                        {"type": "text", "text": "Well?"},
                    ],
                },
            ],
        },
        TokenHistory(),
        MessagesTools(()),
    )
    assert messages["messages"] == [
        {"role": "system", "content": "One.\n\nTwo."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": "Adding.",
            "reasoning": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
        {"role": "user", "content": "Well?"},
    ]


def test_a_schema_and_an_image_in_openais_words() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
    response = chat_of_response(
        {
            "input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [image]}],
            "text": {"format": {"type": "json_schema", "name": "answer", "schema": TOOL, "strict": True}},
            "reasoning": {"effort": "low"},
            "metadata": {"a": "b"},
            "store": False,
            "top_k": 5,
        },
        TokenHistory(),
        ResponsesTools(()),
    )
    url = {"url": "data:image/png;base64,AAAA"}
    assert response["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image_url", "image_url": url}]},
    ]
    schema = {"name": "answer", "schema": TOOL, "strict": True}
    assert response["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert (response["reasoning_effort"], response["top_k"]) == ("low", 5)
    assert not response.keys() & {"metadata", "store", "text", "input"}


async def test_a_call_hangs_under_the_span_its_agent_was_in(desk: Desk, engine: ScriptedEngine) -> None:
    hello: Any = [{"role": "user", "content": "hello"}]
    trace, span = "ab" * 16, "cd" * 8
    for header in (f"00-{trace}-{span}-01", "nonsense", f"00-{trace}-{'0' * 16}-01"):
        await desk.openai.chat.completions.create(model="policy", messages=hello, extra_headers={"traceparent": header})
    parents = [item.parent_span_id for item in desk.spans]
    assert parents == [span, desk.root, desk.root]


ODD = [
    ("messages", {"tools": [{"name": "a"}]}),
    ("messages", {"tools": 5}),
    ("messages", {"tool_choice": "auto"}),
    ("messages", {"system": 5}),
    ("messages", {"system": ["x"]}),
    ("messages", {"output_format": "json"}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": "x"}]}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}]}),
    (
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
    ),
    ("messages/count_tokens", {"tools": 5}),
    ("responses", {"text": "x"}),
    ("responses", {"text": {"format": "json"}}),
    ("responses", {"reasoning": "low"}),
    ("responses", {"tools": 5}),
    ("responses", {"previous_response_id": ["a"]}),
    ("responses", {"input": [{"role": "user", "content": 5}]}),
    ("responses", {"input": [{"type": "function_call_output", "output": 5}]}),
    ("responses", {"input": [{"type": "reasoning", "summary": 5}]}),
    ("responses", []),
    ("chat/completions", {"messages": 5}),
]


async def test_a_request_of_no_sensible_form_is_a_bad_request(desk: Desk) -> None:
    headers = {"Authorization": f"Bearer {desk.key}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for route, odd in ODD:
            base = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 5}
            body = {**base, **odd} if isinstance(odd, dict) else odd
            async with http.post(f"{desk.url}/v1/{route}", json=body) as answer:
                text = await answer.json()
            assert (answer.status, text["error"]["type"]) == (400, "invalid_request_error"), (route, odd, text)
            assert text["error"]["message"]
    assert not desk.calls


async def test_a_key_is_taken_from_either_header(desk: Desk, engine: ScriptedEngine) -> None:
    engine.script = SAYING
    body = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    async with aiohttp.ClientSession() as http:
        for headers, status in (
            ({"Authorization": "Bearer another", "x-api-key": desk.key}, 200),
            ({"Authorization": f"Bearer {desk.key}", "x-api-key": "another"}, 200),
            ({"Authorization": "Bearer another", "x-api-key": "another"}, 401),
            ({}, 401),
        ):
            async with http.post(f"{desk.url}/v1/messages", json=body, headers=headers) as answer:
                assert answer.status == status


@pytest.mark.parametrize("arguments", ['{"a": 1}', "{a: 1}", ""])
async def test_a_tool_asked_for_by_name_ends_a_message_with_its_use(
    desk: Desk, engine: ScriptedEngine, arguments: str
) -> None:
    function = {"name": "add", "arguments": arguments}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    engine.script = [{"tool_calls": [call]}, {"finish_reason": "stop"}]  # vLLM's word for a named tool
    request: Any = {
        "model": "policy",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": "add", "input_schema": TOOL}],
        "tool_choice": {"type": "tool", "name": "add"},
    }
    plain = await desk.anthropic.messages.create(**request)
    async with desk.anthropic.messages.stream(**request) as stream:
        streamed = await stream.get_final_message()
    assert plain.stop_reason == streamed.stop_reason == "tool_use"
    assert [block.to_dict() for block in plain.content] == [block.to_dict() for block in streamed.content]
    assert plain.content[0].input == (
        {"a": 1} if arguments == '{"a": 1}' else {"arguments": arguments} if arguments else {}
    )  # type: ignore[union-attr]


async def test_instructions_are_those_of_one_request_and_what_was_said_is_not_changed(
    desk: Desk, engine: ScriptedEngine
) -> None:
    engine.script = CALLING
    tools: Any = [{"type": "function", "name": "add", "parameters": TOOL, "strict": False}]
    first = await desk.openai.responses.create(model="policy", input="1+1?", instructions="Old.", tools=tools)
    engine.script = SAYING
    calls = [item.to_dict() for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (1, 2)]
    more: Any = [*calls, *outputs]  # the calls again, though the response before holds them
    for instructions in (None, "New."):
        await desk.openai.responses.create(
            model="policy", previous_response_id=first.id, input=more, tools=tools, instructions=instructions
        )
    _, without, renewed = (request["messages"] for request in engine.requests)
    assert [message["role"] for message in without] == ["user", "assistant", "tool", "tool"]
    assert [message["role"] for message in renewed] == ["system", "user", "assistant", "tool", "tool"]
    assert renewed[0]["content"] == "New." and len(renewed[2]["tool_calls"]) == len(without[1]["tool_calls"]) == 2


def test_a_message_begun_for_the_model_is_gone_on_with() -> None:
    begun = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]
    messages = chat_of_messages({"messages": begun}, TokenHistory(), MessagesTools(()))
    assert (messages["add_generation_prompt"], messages["continue_final_message"]) == (False, True)
