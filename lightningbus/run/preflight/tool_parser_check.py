"""One round trip of a tool call: the model's template writes it, and the node's tool parser reads it."""

import json
from itertools import takewhile
from typing import Any

from lightningbus.inference.engine.base import Engine
from lightningbus.inference.engine.parser_trial import TRIAL_PATH
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.preflight.chat_template import ChatTemplate
from lightningbus.run.preflight.scripted_engine import post

NAME, ARGUMENTS = "get_weather", {"city": "Paris", "days": 3}
PARAMETERS = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOL = {"type": "function", "function": {"name": NAME, "parameters": {"type": "object", "properties": PARAMETERS}}}
QUESTION = {"role": "user", "content": "How is the weather in Paris?"}


async def find_fitting_parsers(engine: Engine, node: InferenceSettings, model: str) -> list[str] | None:
    """Return the names of the tool parsers that read a call which the model's template wrote.

    None: the node's own parser does, or the template writes no calls. Both forms count, whole and streamed.
    """
    template = ChatTemplate(engine)
    chat: dict[str, Any] = {"model": model, "messages": [QUESTION], "tools": [TOOL]}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": NAME, "arguments": json.dumps(ARGUMENTS)}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    prompt = await template.render(chat)
    whole = await template.render({**chat, "messages": [QUESTION, answer]}, is_answered=True)
    done = {"role": "assistant", "content": "Done"}
    plain = await template.render({**chat, "messages": [QUESTION, done]}, is_answered=True)
    if prompt is None or whole is None or plain is None:
        return None
    # A prompt may begin more of the answer, such as a thought, than the template writes for an earlier answer.
    num_common = _count_equal(prompt.token_ids, whole.token_ids)
    # All answers end alike, with a token that need not be the tokenizer's own end.
    end = len(whole.token_ids) - _count_equal(plain.token_ids[::-1], whole.token_ids[::-1])
    trial = {
        "request": chat,
        "prompt_token_ids": whole.token_ids[:num_common],
        "token_ids": whole.token_ids[num_common:end],
        "name": NAME,
        "arguments": ARGUMENTS,
        "reasoning_parser": node.reasoning_parser,
    }
    status, text = await post(engine, TRIAL_PATH, trial)
    fitting: list[str] = json.loads(text)["fitting"] if status == 200 else [""]
    return None if "" in fitting else fitting


def _count_equal(first: list[int], second: list[int]) -> int:
    """Count the equal tokens at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
