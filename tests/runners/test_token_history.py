"""A chat that goes on keeps its tokens: decided on real tokenizers and templates, and done by the gateway."""

import json
from typing import Any

import pytest
from aiohttp import web
from transformers import Qwen2Tokenizer

from lightningbus.bus.client import Bus
from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory, splice_prompt
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import PROMPT, ScriptedEngine, calls_of, ended, running, task

END = "<|im_end|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMS = (  # as Llama 3 does
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
FORGETS = (  # as templates of reasoning models do: what was thought is history
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE that merges, so that most texts can be written in several ways."""
    texts = ["the cat sat on the mat and the dog saw the cat", "abcabcabc 123 456 user assistant think"] * 50
    return Qwen2Tokenizer(eos_token=END).train_new_from_iterator(
        texts, 400, new_special_tokens=["<|im_start|>"], show_progress=False
    )


def rendered(tokenizer: Qwen2Tokenizer, template: str, messages: list[Any], is_answered: bool) -> list[int]:
    text = tokenizer.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=not is_answered, tokenize=False
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


ASKED = [{"role": "user", "content": "where sat the cat"}]
ANSWER = " the cat sat on the mat "
GOES_ON = [*ASKED, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "and the dog"}]


@pytest.mark.parametrize("template", [CHATML, TRIMS, FORGETS], ids=["ChatML", "trims", "forgets thoughts"])
@pytest.mark.parametrize("canonical", [True, False])
def test_a_conversation_goes_on_from_the_very_tokens_that_were_sampled(
    tokenizer: Qwen2Tokenizer, template: str, canonical: bool
) -> None:
    prompt = rendered(tokenizer, template, ASKED, is_answered=False)
    letters = [token for letter in ANSWER for token in tokenizer.encode(letter, add_special_tokens=False)]
    text = tokenizer.encode(ANSWER, add_special_tokens=False) if canonical else letters
    kept = [*prompt, *text, tokenizer.convert_tokens_to_ids(END)]
    old = rendered(tokenizer, template, GOES_ON[:2], is_answered=True)
    new = rendered(tokenizer, template, GOES_ON, is_answered=False)
    actual = splice_prompt(kept, old, new)
    assert actual is not None and actual[: len(kept)] == kept
    decode = tokenizer.decode
    assert (
        decode(actual[len(kept) :]).strip()
        == decode(new).rpartition("mat")[2].removeprefix(" ").removeprefix(END).strip()
    )
    if template == CHATML:
        assert decode(actual) == decode(new), "the same text, though other tokens"


def test_what_a_template_rewrites_is_rendered_anew(tokenizer: Qwen2Tokenizer) -> None:
    thought = [*ASKED, {"role": "assistant", "content": "the cat</think> on the mat"}]
    prompt = rendered(tokenizer, FORGETS, ASKED, is_answered=False)
    kept = prompt + tokenizer.encode("the cat</think> on the mat" + END, add_special_tokens=False)
    old = rendered(tokenizer, FORGETS, thought, is_answered=True)
    new = rendered(tokenizer, FORGETS, [*thought, GOES_ON[2]], is_answered=False)
    assert splice_prompt(kept, old, new) is None


def test_an_answer_that_was_cut_off_has_no_end_to_go_on_from() -> None:
    assert splice_prompt([1, 2, 3], [1, 2, 4, 9], [1, 2, 4, 9, 5]) is None
    assert splice_prompt([], [], [1]) is None
    assert splice_prompt([1, 9, 3, 9], [1, 3, 9], [1, 3, 9, 5]) is None, "two ends held, one rendered"


def call(messages: list[Any]) -> ChatRequest:
    return ChatRequest.parse({"model": "policy", "messages": messages}, chat=True)


def test_the_longest_conversation_that_is_gone_on_with_is_found() -> None:
    history = TokenHistory()
    history.add(call(ASKED), {"role": "assistant", "content": ANSWER, "tool_calls": []}, [1], [])
    history.add(call(GOES_ON), {"role": "assistant", "content": "x"}, [1, 2, 3], [1, 2])
    longer = [*GOES_ON, {"role": "assistant", "content": "x"}, {"role": "user", "content": "?"}]
    turns = [
        history.longest_prefix(call(messages)) for messages in (longer, GOES_ON, ASKED, [*longer[:1], *longer[3:]])
    ]
    assert [turn and turn.tokens for turn in turns] == [[1, 2, 3], [1], None, None]


@pytest.mark.parametrize(
    ("finish", "stopped", "expected"), [("stop", None, True), ("stop", "\n", False), ("length", None, False)]
)
def test_only_an_answer_the_model_ended_itself_is_gone_on_with(finish: str, stopped: Any, expected: bool) -> None:
    """A stop of the agent's is in the tokens and not in the text, so no rendering says where it was."""
    completion = StreamAccumulator(call(ASKED), {})
    completion._feed_chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": finish, "stop_reason": stopped}]})
    assert completion.stopped_at_eos is expected


class Rendering(ScriptedEngine):
    """Renders a chat as other tokens than those it is_answered with: a model that speaks in pieces."""

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        if "prompt" in body:
            return web.json_response({"tokens": [78], "token_strs": [body["prompt"]]})
        tokens = [*PROMPT]
        for message in body["messages"][1:]:
            tokens += [78, 8] if message["role"] == "assistant" else [5]  # 7 8 was sampled
        tokens += [6] if body["add_generation_prompt"] and len(body["messages"]) > 1 else []
        strings = {78: "xx", 5: "user ", 6: "answer: ", 8: "end "}
        texts = [strings.get(token, "begin ") for token in tokens]
        return web.json_response({"tokens": tokens, "token_strs": texts if body.get("return_token_strs") else None})


@pytest.mark.parametrize("on", [True, False])
async def test_an_agent_that_chats_gets_one_unbroken_context(bus: Bus, on: bool) -> None:
    engine = Rendering()
    async with engine.serving(bus), running(bus, entrypoint="plain:chats", token_in_token_out=on):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    calls = calls_of(batch)
    prompts = [list(memoryview(item.prompt_ids).cast("I")) for item in calls]
    assert prompts == [PROMPT, [*PROMPT, 7, 8, 5, 6] if on else PROMPT]
    sent = [request for request in engine.requests if "return_token_ids" in request]
    assert ("prompt" in sent[-1]) is on
    assert json.loads(calls[1].response) == {"role": "assistant", "content": "xx"}


async def test_a_stream_in_tokens_looks_as_any_other(bus: Bus) -> None:
    engine = Rendering()
    async with engine.serving(bus), running(bus, entrypoint="plain:chats_streaming"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end


@pytest.mark.parametrize(
    "other",
    [
        {"documents": [{"title": "cats", "text": "A cat sat here."}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"chat_template": CHATML},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_call_that_renders_something_else_continues_no_conversation(other: dict[str, Any]) -> None:
    """Its sampled tokens stand behind another prompt."""
    history, answer = TokenHistory(), {"role": "assistant", "content": ANSWER}
    history.add(ChatRequest.parse({"model": "policy", "messages": ASKED}, chat=True), answer, [1, 2, 3], [1, 2])
    same, changed = (
        ChatRequest.parse({"model": "policy", "messages": GOES_ON, **fields}, chat=True) for fields in ({}, other)
    )
    assert history.longest_prefix(same) is not None and history.longest_prefix(changed) is None


def test_what_a_template_renders_is_in_the_request_that_renders_it_again() -> None:
    """/tokenize takes variables of the template in `chat_template_kwargs` alone."""
    documents = [{"title": "cats", "text": "A cat sat here."}]
    body = {"model": "policy", "messages": ASKED, "documents": documents, "reasoning_effort": "none"}
    call = ChatRequest.parse({**body, "chat_template_kwargs": {"lang": "en"}}, chat=True)
    assert call.to_tokenize_request(ASKED, is_answered=True) == {
        "model": "policy",
        "messages": ASKED,
        "add_generation_prompt": False,
        "chat_template_kwargs": {
            "documents": documents, "reasoning_effort": "none", "enable_thinking": False, "lang": "en",
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stop_reason", "body", "is_end"),
    [
        (None, {}, True),
        (151645, {}, True),  # a second end token, which vLLM names
        (151645, {"stop_token_ids": [151645]}, False),
        ("\n\n", {"stop": ["\n\n"]}, False),
    ],
)
def test_every_end_token_of_a_model_ends_an_answer(stop_reason: Any, body: dict[str, Any], is_end: bool) -> None:
    call = ChatRequest.parse({"model": "policy", "messages": ASKED, **body}, chat=True)
    completion = StreamAccumulator(call, {})
    choice = {"index": 0, "delta": {"content": "x"}, "token_ids": [7], "finish_reason": "stop"}
    completion.feed({"weight_version": 1, "choices": [{**choice, "stop_reason": stop_reason}]})
    assert completion.stopped_at_eos is is_end
