"""What vLLM's streaming parsers say adds up to one message, whichever of them says it and however it cuts it.

Walks vLLM's own registries, so that a new release is chunks to it as well.
"""

import itertools
import logging
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from lightningbus.runners.protocol.answers.joined_message import JoinedMessage
from lightningbus.runners.protocol.answers.released_message import ReleasedMessage

pytestmark = [pytest.mark.e2e, pytest.mark.main_job]

NUM_MIXED = 2
"""Texts of chance for each parser, beside those below."""
JSON_CALL = '{"name": "add", "arguments": {"a": 1, "b": "x"}}'
CALLS = (
    f"<tool_call>\n{JSON_CALL}\n</tool_call>",
    f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL.replace('1', '2')}</tool_call>",
    '<tool_call>\n{"arguments": {"a": 1}, "name": "add"}\n</tool_call>',
    "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    f"<|tool_call|>[{JSON_CALL}]",
    f"<|tool_call_start|>[{JSON_CALL}]<|tool_call_end|>",
    f"[TOOL_CALLS][{JSON_CALL}]",
    '[TOOL_CALLS]add{"a": 1}',
    f"<tool_calls>{JSON_CALL}</tool_calls>",
    f"<|python_tag|>{JSON_CALL.replace('arguments', 'parameters')}",
    "[add(a=1, b='x'), sub(a=2)]",
    f"functools[{JSON_CALL}]",
    '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
    f"<longcat_tool_call>{JSON_CALL}</longcat_tool_call>",
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}'
    "<|tool_call_end|><|tool_calls_section_end|>",
)
TEXTS = (
    "No call.",
    *(f"Let me see. {call}" for call in CALLS),
    *(f"<think>I add.</think>So: {call} Done." for call in CALLS[:2]),
    "Here is my thought process: I add. Here is my response: three.",
)


class Vocabulary(dict[str, int]):
    """Every mark that a parser asks for is a token."""

    def get(self, token: Any, default: Any = None) -> Any:  # type: ignore[override]
        return self[token]

    def __contains__(self, token: object) -> bool:
        return True

    def __missing__(self, token: str) -> int:
        self[token] = len(self) + 0x110000
        return self[token]


class AnyTokenizer:
    """Has a token for each character, and for each mark of the vocabulary."""

    is_fast = True
    bos_token = eos_token = "<|end|>"
    eos_token_id = bos_token_id = 0
    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()
    name_or_path = ""

    def __init__(self) -> None:
        self.vocab = Vocabulary()

    def get_vocab(self) -> Vocabulary:
        return self.vocab

    def get_added_vocab(self) -> dict[str, int]:
        return dict(self.vocab)

    def tokens(self, text: str) -> list[str]:
        marks = sorted((mark for mark in self.vocab if len(mark) > 1), key=len, reverse=True)
        return re.findall("|".join([*map(re.escape, marks), "(?s:.)"]), text)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return [ord(token) if len(token) == 1 else self.vocab[token] for token in self.tokens(text)]

    def decode(self, ids: int | Iterable[int], *_: Any, **__: Any) -> str:
        names = {id: token for token, id in self.vocab.items()}
        return "".join(names.get(id) or chr(id) for id in ([ids] if isinstance(ids, int) else ids))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self.encode(tokens)[0] if isinstance(tokens, str) else [self.encode(token)[0] for token in tokens]

    def convert_ids_to_tokens(self, ids: Any, **_: Any) -> Any:
        return self.decode(ids) if isinstance(ids, int) else [self.decode(id) for id in ids]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


def pieces_of(text: str, tokenizer: AnyTokenizer, chance: random.Random) -> Iterator[tuple[str, list[int]]]:
    """Text and token ids of each chunk: a token, or a few."""
    tokens = iter(tokenizer.tokens(text))
    while piece := "".join(itertools.islice(tokens, chance.choice((1, 3, 9)))):
        yield piece, tokenizer.encode(piece)


def streamed(parser: Any, request: Any, pieces: Iterable[tuple[str, list[int]]]) -> list[dict[str, Any]]:
    """The deltas as vLLM writes them, as far as the parser gets."""
    deltas: list[dict[str, Any]] = []
    chunks = list(pieces)
    for number, (text, ids) in enumerate(chunks, 1):
        try:
            delta = parser.parse_delta(text, ids, request, prompt_token_ids=[1], finished=number == len(chunks))
        except Exception:  # vLLM ends such a stream with an error
            break
        deltas.append(delta.model_dump(exclude_unset=True) if delta is not None else {})
    return deltas


def summed(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """What the deltas say, in the plainest way: texts in order, and calls by id within their index."""
    calls: dict[int, list[dict[str, str]]] = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls") or ()):
        same = calls.setdefault(piece["index"], [])
        if not same or (piece.get("id") and same[-1]["id"] not in ("", piece["id"])):
            same.append({"id": "", "name": "", "arguments": ""})
        function = piece.get("function") or {}
        same[-1]["id"] = piece.get("id") or same[-1]["id"]
        same[-1]["name"] = function.get("name") or same[-1]["name"]
        same[-1]["arguments"] += function.get("arguments") or ""
    return {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning": "".join(delta.get("reasoning") or "" for delta in deltas),
        "calls": [(call["name"], call["arguments"]) for index in sorted(calls) for call in calls[index]],
    }


def joined(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    message = JoinedMessage()
    for delta in deltas:
        message.add(delta)
    whole = message.whole("chatcmpl-1")
    functions = [call["function"] for call in whole.get("tool_calls", ())]
    return {
        "content": whole["content"] or "",
        "reasoning": whole.get("reasoning", ""),
        "calls": [(function["name"], function["arguments"]) for function in functions],
    }


def mixed(marks: list[str], chance: random.Random) -> str:
    """A parser's own marks, and what may stand between them."""
    between = ["Hm. ", JSON_CALL, '{"a": 1}', "add", "\n", " ", *CALLS]
    return "".join(chance.choice(marks if marks and at % 2 else between) for at in range(9))


@pytest.fixture
def _quiet() -> Iterator[None]:
    """vLLM's parsers log each text that they cannot read, with a traceback."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_quiet")
def test_deltas_of_every_parser_add_up() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    tools = [{"type": "function", "function": function}]
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": [], "tools": tools, "stream": True})
    named = [{"tool_parser_name": name} for name in ToolParserManager.list_registered()]
    named += [{"reasoning_parser_name": name} for name in ReasoningParserManager.list_registered()]
    fed, with_nulls, with_calls = set(), set(), set()
    for names in named:
        (name,) = names.values()
        chance = random.Random(name)
        try:
            cls = ParserManager.get_parser(enable_auto_tools=True, **names)
            cls(tokenizer := AnyTokenizer(), request.tools)
        except Exception:  # needs a package or a tokenizer that is not here
            continue
        marks = [mark for mark in tokenizer.vocab if isinstance(mark, str) and len(mark) > 1]
        for text in (*TEXTS, *(mixed(marks, chance) for _ in range(NUM_MIXED))):
            deltas = streamed(cls(tokenizer, request.tools), request, pieces_of(text, tokenizer, chance))
            assert joined(deltas) == summed(deltas), (name, text)
            fed.add((name, *names))
            if any(None in (delta.get("content", ""), delta.get("reasoning", "")) for delta in deltas):
                with_nulls.add(name)
            if any(delta.get("tool_calls") for delta in deltas):
                with_calls.add(name)
    assert len(fed) > 0.8 * len(named) and len(with_calls) > 15 and len(with_nulls) > 5


def release(deltas: list[dict[str, Any]]) -> tuple[ReleasedMessage, JoinedMessage, list[dict[str, Any]]]:
    """A message as far as deltas go, and what an agent has of it."""
    released, message, visible = ReleasedMessage(), JoinedMessage(), []
    for delta in deltas:
        message.add(delta)
        visible.append(released.advance(message))
    return released, message, visible


def joined_whole(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls") or ())]
    return joined([{**message, "tool_calls": calls}])


@pytest.mark.usefixtures("_quiet")
def test_what_is_released_of_every_tool_parsers_stream_is_the_message_and_goes_on_after_a_break() -> None:
    """The whole text of a broken answer is parsed: its end follows what the agent has, wherever it broke off."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser import ParserManager
    from vllm.tool_parsers import ToolParserManager

    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    tools = [{"type": "function", "function": function}]
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": [], "tools": tools, "stream": True})
    early, resumed, unknown = set(), set(), {}
    for name in ToolParserManager.list_registered():
        chance = random.Random(name)
        try:
            cls = ParserManager.get_parser(enable_auto_tools=True, tool_parser_name=name)
            cls(tokenizer := AnyTokenizer(), request.tools)
        except Exception:  # needs a package or a tokenizer that is not here
            continue
        for text in TEXTS:
            deltas = streamed(cls(tokenizer, request.tools), request, pieces_of(text, tokenizer, chance))
            released, message, visible = release(deltas)
            whole = message.whole("chatcmpl-1")
            end = released.end(whole)
            assert end is not None and end.message == whole
            assert joined([*visible, *end.deltas]) == joined_whole(whole), (name, text)
            if not whole.get("tool_calls"):
                continue
            if any(delta.get("tool_calls") for delta in visible):
                early.add(name)
            try:
                parser = cls(tokenizer, request.tools)
                ids = tokenizer.encode(text)
                _, content, calls = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
            except Exception:  # the parser fails at this text
                continue
            functions = [{"name": call.name, "arguments": call.arguments} for call in calls or ()]
            parsed = {"content": content, "tool_calls": [{"id": "z", "function": each} for each in functions]}
            for at in range(len(deltas)):
                released, _, visible = release(deltas[:at])
                end = released.end(parsed)
                if end is None:
                    unknown[name, text] = at
                    break
                got = joined([*visible, *end.deltas])
                assert got == joined_whole(end.message) and len(got["calls"]) == len(functions), (name, text, at)
            else:
                resumed.add(name)
    assert len(early) > 15 and early <= resumed, (early - resumed, unknown)
