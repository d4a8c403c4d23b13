"""Sampling settings that a task forces on a call, whatever the agent asks for."""

from typing import Any

import pytest

from lightningbus.runners.protocol.answers.choice import recorded_sampling
from lightningbus.runners.protocol.answers.continuation import remaining_tokens
from lightningbus.runners.protocol.request import ChatRequest

CHAT, TEXT = {"model": "policy", "messages": []}, {"model": "policy", "prompt": "x"}


@pytest.mark.parametrize(
    ("body", "sampling", "limits"),
    [
        (CHAT | {"max_completion_tokens": 9}, {"max_tokens": 4}, {"max_tokens": 4}),
        (CHAT | {"max_tokens": 9}, {"max_completion_tokens": 4}, {"max_completion_tokens": 4}),
        (CHAT | {"max_tokens": 4}, {"temperature": 1.0}, {"max_tokens": 4}),
        (TEXT | {"max_tokens": 9}, {"max_completion_tokens": 4}, {"max_tokens": 4}),
        (TEXT, {"max_completion_tokens": 4, "max_tokens": 5}, {"max_tokens": 4}),
    ],
)
def test_a_bound_of_the_answer_replaces_the_agents_by_either_name(
    body: dict[str, Any], sampling: dict[str, Any], limits: dict[str, int]
) -> None:
    call = ChatRequest.parse(body, chat="messages" in body)
    for request in (call.to_engine_request(sampling), recorded_sampling(call, sampling)):
        assert {name: request[name] for name in request if name.startswith("max_")} == limits
    assert remaining_tokens(call, sampling, 10, 1, 100) == 3
