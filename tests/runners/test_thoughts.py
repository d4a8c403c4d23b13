"""A thought that the gateway shows comes back as a thought, by the rules of clients that drop some forms of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.protocol.thoughts import seal, unseal
from tests.runners.conftest import ScriptedEngine
from tests.runners.test_dialects import CALLING, TOOL, Desk, asked_for_a_response, opened

QUESTION = {"role": "user", "content": "1+1?"}


@pytest.fixture
async def desk(bus: Bus, engine: ScriptedEngine) -> AsyncIterator[Desk]:
    engine.script = CALLING
    async with opened(bus) as desk:
        yield desk


def check(engine: ScriptedEngine) -> None:
    """The second chat goes on from the first one and its answer."""
    _, request = engine.requests
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool", "tool"]
    answer = request["messages"][1]
    assert (answer["reasoning"], answer["content"]) == ("I must count.", "Let me see.")
    assert [call["function"]["name"] for call in answer["tool_calls"]] == ["add", "sub"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages_sign_a_thought(desk: Desk, engine: ScriptedEngine, streamed: bool) -> None:
    more: dict[str, Any] = {"model": "policy", "max_tokens": 50}
    more["tools"] = [{"name": name, "input_schema": TOOL} for name in ("add", "sub")]
    message: Any
    if streamed:
        async with desk.anthropic.messages.stream(**more, messages=[QUESTION]) as stream:
            message = await stream.get_final_message()
    else:
        message = await desk.anthropic.messages.create(**more, messages=[QUESTION])
    # Clients drop a thought whose signature is empty, or write it into a message of the user.
    blocks = [block.to_dict() for block in message.content if block.type != "thinking" or block.signature]
    results = [{"type": "tool_result", "tool_use_id": f"call_{n}", "content": "1"} for n in (1, 2)]
    history = [QUESTION, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    await desk.anthropic.messages.create(**more, messages=history)
    check(engine)


@pytest.mark.parametrize("kept", [("content",), ("encrypted_content",), ("content", "encrypted_content")])
@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_seal_a_thought(
    desk: Desk, engine: ScriptedEngine, streamed: bool, kept: tuple[str, ...]
) -> None:
    tools = [{"type": "function", "name": name, "parameters": TOOL, "strict": False} for name in ("add", "sub")]
    more: dict[str, Any] = {"model": "policy", "tools": tools, "include": ["reasoning.encrypted_content"]}
    response = await asked_for_a_response(desk, streamed, **more, input=[QUESTION])
    thought, *others = [item.to_dict() for item in response.output]
    sent_back = {"type": "reasoning", "id": thought["id"], "summary": [], **{name: thought[name] for name in kept}}
    outputs = [{"type": "function_call_output", "call_id": f"call_{n}", "output": "1"} for n in (1, 2)]
    await asked_for_a_response(desk, streamed, **more, input=[QUESTION, sent_back, *others, *outputs])
    check(engine)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_a_chat_takes_a_thought_by_either_name(desk: Desk, engine: ScriptedEngine, field: str) -> None:
    answer = (await desk.openai.chat.completions.create(model="policy", messages=[QUESTION])).choices[0].message
    sent_back = answer.model_dump(exclude_none=True)
    sent_back[field] = sent_back.pop("reasoning")
    results = [{"role": "tool", "tool_call_id": f"call_{n}", "content": "1"} for n in (1, 2)]
    await desk.openai.chat.completions.create(model="policy", messages=[QUESTION, sent_back, *results])  # type: ignore[arg-type]
    check(engine)


def test_a_seal_of_a_vendor_is_no_thought() -> None:
    assert unseal(seal("I must add. \ud800 ✓")) == "I must add. \ud800 ✓"
    assert [unseal(other) for other in ("", None, "gAAAA", "lightningbus.!", "lightningbus.gA==")] == [""] * 5
