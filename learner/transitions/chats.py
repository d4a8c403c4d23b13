"""Chats as calls to imitate: an assistant's turns, each after the prompt that the model's own template makes of it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightningbus.learner.transitions.chat_content import PROBE, Message, find_part_roles, join_parts
from lightningbus.learner.transitions.rendered_answer import divide_turn
from lightningbus.learner.transitions.sequences import CONTEXT
from lightningbus.learner.transitions.transitions import Transition

MAX_REASON_LETTERS = 200


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's chat template and tokenizer."""

    render: Callable[[Sequence[Message], Sequence[Any] | None, bool], str]
    """Renders messages and tools, with or without the beginning of the next answer."""
    encode: Callable[[str], list[int]]
    end_ids: Collection[int]
    """Tokens at which an engine ends an answer; the first is added where the template puts none."""

    @classmethod
    def load(cls, model_path: Path) -> "ChatTemplate":
        """Load those of a model's directory; raise ValueError if it has no template."""
        from transformers import AutoTokenizer, GenerationConfig

        tokenizer: Any = AutoTokenizer.from_pretrained(model_path)
        if not tokenizer.chat_template:
            raise ValueError(f"{model_path} has no chat template: chats need the tokenizer of a chat model")

        def render_as_is(
            messages: Sequence[Message], tools: Sequence[Any] | None = None, begins_answer: bool = False
        ) -> str:
            try:
                text = tokenizer.apply_chat_template(
                    list(messages), tools=tools, tokenize=False, add_generation_prompt=begins_answer
                )
            except Exception as error:  # a template is a program of others, and raises what it will
                reason = " ".join(str(error).split())[:MAX_REASON_LETTERS]
                raise ValueError(
                    f"the model's chat template refuses the first {len(messages)} messages: {reason}"
                ) from error
            return str(text)

        part_roles = find_part_roles(render_as_is)

        def render(messages: Sequence[Message], tools: Sequence[Any] | None, begins_answer: bool) -> str:
            return render_as_is(join_parts(messages, part_roles), tools, begins_answer)

        def encode(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        end_ids = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        if (model_path / "generation_config.json").exists():
            ends = GenerationConfig.from_pretrained(model_path).eos_token_id
            end_ids += ends if isinstance(ends, list) else [] if ends is None else [ends]
        return cls(render, encode, list(dict.fromkeys(end_ids)))


def build_chat(messages: Sequence[Message], tools: Sequence[Any] | None, template: ChatTemplate) -> list[Transition]:
    """Build a call of each of an assistant's turns, but for those with ``weight: 0``; raise ValueError.

    An answer ends where an engine would end it: at the template's own end token.
    """
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"message {place + 1} has no role")
    turns = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        raise ValueError("no message is an assistant's")
    calls = []
    for turn in turns:
        weight = messages[turn].get("weight", 1)
        if weight not in (0, 1):
            raise ValueError(f"message {turn + 1}: its weight is {weight!r}: give 0 or 1")
        if weight == 0:
            continue
        prompt = template.render(messages[:turn], tools, True)
        whole = template.render(messages[: turn + 1], tools, False)
        parts = divide_turn(prompt, whole, messages[turn - 1] if turn else {}, messages[turn])
        if parts is None:
            raise ValueError(
                f"message {turn + 1}: the model's chat template does not continue the prompt by this answer"
            )
        prompt, answer = parts
        if missing := [name for name in _list_called(messages[turn]) if name not in answer]:
            raise ValueError(
                f"message {turn + 1}: the model's chat template leaves out the call of {missing[0]}: write the "
                "call into `content`, as the engine's tool parser reads it"
            )
        response_ids = _end_answer(template.encode(answer), template.end_ids)
        calls.append(demonstrated_call(turn, template.encode(prompt), response_ids))
    _refuse_left_out(messages[: turns[-1]], tools, template)
    return calls


def _refuse_left_out(messages: Sequence[Message], tools: Sequence[Any] | None, template: ChatTemplate) -> None:
    """Raise ValueError for a message of another role than assistant that the template leaves out.

    A template may change what it writes, so a message that is not found is tried with a text that nothing changes.
    """
    text = template.render(messages, tools, True)
    for place, message in enumerate(messages):
        content = message.get("content")
        words = content if isinstance(content, str) else content[0]["text"] if content else ""
        if message["role"] == "assistant" or words.strip() in text:
            continue
        probed = [*messages[:place], {**message, "content": PROBE}, *messages[place + 1 :]]
        if PROBE not in template.render(probed, tools, True):
            raise ValueError(
                f"message {place + 1}: the model's chat template leaves it out: its role is {message['role']!r}"
            )


def _list_called(message: Message) -> list[str]:
    """List the names of the functions that a message calls, in OpenAI's forms of today and of before."""
    calls = message.get("tool_calls")
    calls = [*(calls if isinstance(calls, list) else []), message.get("function_call")]
    functions = [call.get("function", call) for call in calls if isinstance(call, dict)]
    return [str(function["name"]) for function in functions if isinstance(function, dict) and "name" in function]


def demonstrated_call(index: int, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Transition:
    """Make a call that is imitated: nobody is known to have sampled it."""
    count = len(response_ids)
    return Transition(
        index=index,
        role="",
        temperature=1.0,
        prompt_ids=np.array(prompt_ids, np.int64),
        response_ids=np.array(response_ids, np.int64),
        logprobs=np.zeros(count, np.float32),
        versions=np.full(count, CONTEXT, np.int64),
    )


def _end_answer(token_ids: list[int], end_ids: Collection[int]) -> list[int]:
    for place, token in enumerate(token_ids):
        if token in end_ids:
            return token_ids[: place + 1]
    return token_ids + list(end_ids)[:1]
