"""However an engine cuts its deltas, the vendors' clients put together the message that is recorded."""

import json
from typing import Any

import pytest

from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.codec import decode, encode
from lightningbus.schemas.spans import SpanBatch
from tests.runners.conftest import ScriptedEngine, task
from tests.runners.test_accumulator import FIRST, chunk
from tests.runners.test_dialects import TOOL, Desk, desk
from tests.runners.test_joined_message import SHAPES, A, B, piece

__all__ = ["desk"]

NULLS = {"content": None, "reasoning": None}
SHARED = ("one index for two calls", "interleaved by index", "no index", "both in one delta")
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "nulls with the call": [
        {"role": "assistant", "reasoning": "Hm. "},
        {"content": "Let me see. ", "reasoning": None},
        {**NULLS, **piece(0, "a", "add", '{"x"')},
        {**NULLS, **piece(0, text=": 1}")},
    ],
    "name last": [{"content": "So: "}, piece(0, "a", text='{"x": 1}'), {"content": None, **piece(0, name="add")}],
    **{name: SHAPES[name][0] for name in SHARED},
}  # fmt: skip


async def chat(desk: Desk) -> dict[str, Any]:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": TOOL}}]
    request: Any = {"model": "policy", "messages": [{"role": "user", "content": "1"}], "tools": tools}
    async with desk.openai.chat.completions.stream(**request) as stream:
        streamed = (await stream.get_final_completion()).choices[0].message
    plain = (await desk.openai.chat.completions.create(**request)).choices[0].message
    answer = [
        {
            "content": message.content or "",
            "reasoning": (message.model_extra or {}).get("reasoning") or "",
            "calls": [
                (call.id, call.function.name, call.function.arguments)
                for call in message.tool_calls or ()
                if call.type == "function"
            ],
        }
        for message in (streamed, plain)
    ]
    assert answer[0] == answer[1]
    return answer[0]


async def message(desk: Desk) -> dict[str, Any]:
    tools: Any = [{"name": "add", "input_schema": TOOL}]
    request: Any = {"model": "policy", "messages": [{"role": "user", "content": "1"}], "max_tokens": 9, "tools": tools}
    async with desk.anthropic.messages.stream(**request) as stream:
        streamed = await stream.get_final_message()
    plain = await desk.anthropic.messages.create(**request)
    assert [block.model_dump() for block in streamed.content] == [block.model_dump() for block in plain.content]
    texts = {"text": "", "thinking": ""}
    for block in streamed.content:
        if block.type in texts:
            texts[block.type] += getattr(block, block.type)
    calls = [(b.id, b.name, json.dumps(b.input)) for b in streamed.content if b.type == "tool_use"]
    return {"content": texts["text"], "reasoning": texts["thinking"], "calls": calls}


async def response(desk: Desk) -> dict[str, Any]:
    tools: Any = [{"type": "function", "name": "add", "parameters": TOOL, "strict": False}]
    request: Any = {"model": "policy", "input": "1", "tools": tools}
    async with desk.openai.responses.stream(**request) as stream:
        streamed = await stream.get_final_response()
    plain = await desk.openai.responses.create(**request)
    outputs = [
        {
            "content": answer.output_text,
            "reasoning": "".join(i.content[0].text for i in answer.output if i.type == "reasoning" and i.content),
            "calls": [(i.call_id, i.name, i.arguments) for i in answer.output if i.type == "function_call"],
        }
        for answer in (streamed, plain)
    ]
    assert outputs[0] == outputs[1]
    return outputs[0]


@pytest.mark.parametrize("script", SCRIPTS)
async def test_all_three_apis_say_what_is_recorded(desk: Desk, engine: ScriptedEngine, script: str) -> None:
    engine.script = [*SCRIPTS[script], {"finish_reason": "tool_calls"}]
    for ask in (chat, message, response):
        answer = await ask(desk)
        for model_call in [span.call for span in desk.spans if span.call is not None][-2:]:
            message_recorded = json.loads(model_call.response)
            assert answer == {
                "content": message_recorded["content"] or "",
                "reasoning": message_recorded.get("reasoning", ""),
                "calls": [
                    (call["id"], call["function"]["name"], call["function"]["arguments"])
                    for call in message_recorded["tool_calls"]
                ],
            }
        assert set(answer["calls"]) <= {A, B} and answer["calls"]
        assert answer["content"] == "".join(delta.get("content") or "" for delta in SCRIPTS[script])


def recorded(*chunks: dict[str, Any], **usage: int) -> AttemptRecorder:
    """The record of one answer, as the bus gets it."""
    call = ChatRequest.parse({"model": "policy", "messages": []}, chat=True)
    completion = StreamAccumulator(call, {})
    for item in (*chunks, {"choices": [], "usage": usage or None}):
        completion.feed(item)
    recorder = AttemptRecorder(task(), 1, "runner")
    for choice in completion.sampled_choices():
        recorder.add_call(choice, node="n", role="", request="{}", started_ns=1, ended_ns=2)
    recorder.flush()
    return recorder


def test_an_answer_with_half_a_character_is_recorded() -> None:
    recorder = recorded(
        FIRST | chunk(4, [7], "a \ud83d"), chunk(4, [8], "\ude00 and \udfff", finish_reason="stop\ud800")
    )
    assert recorder.unrecordable_reason == ""
    (batch,) = recorder.outbox
    (span,) = decode(SpanBatch, encode(batch)).spans
    assert span.call is not None and json.loads(span.call.response)["content"] == "a 😀 and ?"
    assert span.call.finish_reason == "stop?"


def test_a_call_that_cannot_be_written_says_why() -> None:
    call = ChatRequest.parse({"model": "policy", "messages": [], "temperature": 2**70}, chat=True)
    completion = StreamAccumulator(call, {})
    completion.feed(FIRST | chunk(4, [7], "a", finish_reason="stop"))
    recorder = AttemptRecorder(task(), 1, "runner")
    (choice,) = completion.sampled_choices()
    recorder.add_call(choice, node="n", role="", request="{}", started_ns=1, ended_ns=2)
    assert "Span cannot be written: " in recorder.unrecordable_reason
    assert "bytes" not in recorder.unrecordable_reason


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 5}, "the engine counts 5 completion tokens, and gave the ids of 2"),
        ({"prompt_tokens": 9, "completion_tokens": 2}, "the engine counts 9 prompt tokens, and gave the ids of 3"),
        ({"prompt_tokens": 3, "completion_tokens": 2}, ""),
        ({}, ""),
    ],
)
def test_a_call_whose_tokens_did_not_all_come_is_not_trained_and_says_why(usage: dict[str, int], reason: str) -> None:
    recorder = recorded(FIRST | chunk(4, [7], "a"), chunk(4, [8], "b", finish_reason="stop"), **usage)
    (span,) = recorder.outbox[0].spans
    assert span.call is not None and json.loads(span.call.response)["content"] == "ab"
    assert span.status_message == reason and span.status == ("error" if reason else "ok")
    assert len(span.call.response_ids) == (0 if reason else 8) == len(span.call.logprobs)
    assert bool(span.call.weight_versions) is not bool(reason) and bool(span.call.prompt_ids) is not bool(reason)
