"""A coding agent's session stays one path of tokens, whatever its client does to the history on the way."""

import json
from typing import Any

import anthropic
import pytest

from lightningbus.bus.client import Bus
from lightningbus.learner.transitions.prefix_tree import find_parents
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.runners.protocol.dialects.anthropic_request import chat
from lightningbus.runners.protocol.dialects.anthropic_tools import MessagesTools
from lightningbus.runners.protocol.token_history import TokenHistory
from tests.runners.session_engine import DONE, SessionEngine, Step, call
from tests.runners.test_dialects import Desk, opened

TOOLS: Any = [{"name": name, "input_schema": {"type": "object"}} for name in ("Bash", "Read", "Edit")]
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
USER = {"role": "user", "content": "mend a.txt"}


async def ask(desk: Desk, messages: list[Any]) -> None:
    """One turn, as Claude Code makes it; the answer is added to the messages."""
    async with desk.anthropic.messages.stream(
        model="policy", max_tokens=32_000, messages=messages, tools=TOOLS
    ) as stream:
        message = await stream.get_final_message()
    messages.append(
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}
    )


def give(messages: list[Any], content: Any) -> None:
    """Add the result of the last answer's call."""
    used = messages[-1]["content"][-1]["id"]
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": used, "content": content}]})


async def test_a_session_with_a_malformed_call_and_a_picture_is_one_path(bus: Bus) -> None:
    steps = [
        Step(calls=[("Bash", '{"command": ')]), call("Read", file_path="a.png"), Step("I see.", [("Bash", "[1]")]),
        call("Edit", file_path="a.txt"), DONE,
    ]  # fmt: skip
    results: list[Any] = ["Error: no command", [PICTURE], "Error: no object", "done"]
    messages: list[Any] = [USER]
    async with SessionEngine(steps).serving(bus) as engine, opened(bus) as desk:
        for result in results:
            await ask(desk, messages)
            give(messages, result)
        # As the client restores its history from disk: with a default filled in, and in another order.
        edit = messages[-2]["content"][-1]
        edit["input"] = {"replace_all": False, **edit["input"]}
        await ask(desk, messages)
    assert isinstance(engine, SessionEngine) and not engine.num_refused
    assert find_parents(build_transitions(desk.calls)) == [None, 0, 1, 2, 3]


async def test_a_prompt_of_tokens_that_fills_the_context_is_told_as_such(bus: Bus) -> None:
    messages: list[Any] = [USER]
    async with SessionEngine([Step(calls=[("Bash", "{")]), DONE], max_model_len=200).serving(bus), opened(bus) as desk:
        await ask(desk, messages)
        give(messages, "word " * 300)
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 200 maximum"):
            await ask(desk, messages)


def test_a_line_that_differs_in_each_conversation_is_left_out() -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.7d5; cc_entrypoint=sdk-cli;"}
    body = {"system": [billing, {"type": "text", "text": "You mend code."}], "messages": [USER]}
    assert chat(body, TokenHistory(), MessagesTools(()))["messages"] == [
        {"role": "system", "content": "You mend code."},
        USER,
    ]
    assert chat({"system": [billing], "messages": [USER]}, TokenHistory(), MessagesTools(()))["messages"] == [USER]


@pytest.mark.parametrize(
    ("sent_back", "is_same"),
    [({"a": 1, "all": False, "mode": None}, True), ({"a": 1, "all": True}, False), ({}, False), ({"a": 0}, False)],
)
def test_arguments_are_as_sampled_beside_defaults(sent_back: Any, is_same: bool) -> None:
    history = TokenHistory(arguments={"1": '{"a":1}'})
    assert history.sampled_arguments("1", sent_back, json.loads) == ('{"a":1}' if is_same else None)
