"""Whatever an engine's stream is cut into, the agent's stream adds up to the answer without one, and to the record."""

import itertools
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.runners.protocol.dialects.registry import APIS
from lightningbus.runners.protocol.token_history import TokenHistory
from tests.runners.test_dialects import TOOL
from tests.runners.test_joined_message import NULLS, SHAPES, piece

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": TOOL}}],
    },
    "responses": {"input": "x", "tools": [{"type": "function", "name": "add", "parameters": TOOL}]},
    "messages": {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 9,
        "tools": [{"name": "add", "input_schema": TOOL}],
    },
}
EAGER = {**BODIES["messages"], "tools": [{**BODIES["messages"]["tools"][0], "eager_input_streaming": True}]}
WORDS = st.lists(st.sampled_from([*" \n\tab<é😀\ude00", "\ud83d\ude00"]), max_size=6).map("".join)
WHOLE_WORDS = st.text(st.sampled_from(" \n\tab<é😀"), max_size=6)


def objects(words: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), words),
        lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(words, inner, max_size=2)),
        max_leaves=4,
    )
    return st.dictionaries(words, values, max_size=3)


STYLES = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": True}])
ARGUMENTS = st.builds(
    lambda value, style: json.dumps(value, **{"ensure_ascii": False, **style}), objects(WORDS), STYLES
)
MALFORMED = st.builds(lambda text, at, fault: text[:at] + fault, ARGUMENTS, st.integers(0, 9), WORDS)


def cut(text: str, at: list[int]) -> list[str]:
    """Cut a text at the positions, modulo its length."""
    edges = sorted({0, len(text), *(position % (len(text) + 1) for position in at)})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@st.composite
def streams(draw: st.DrawFn, is_ordered: bool = False) -> list[dict[str, Any]]:
    """An engine's deltas: thoughts, text, calls, and possibly text between and after them, cut into pieces."""
    cuts = st.lists(st.integers(0, 40), max_size=4)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": text} for text in cut(draw(WORDS), draw(cuts))]
    deltas += [{"content": text} for text in cut(draw(WORDS), draw(cuts))]
    for index in range(draw(st.integers(0, 3))):
        deltas.append(piece(index, f"call_{index}", draw(st.sampled_from(["add", "sub"]))))
        deltas += [piece(index, text=text) for text in cut(draw(st.one_of(ARGUMENTS, MALFORMED)), draw(cuts))]
        if not is_ordered:
            deltas += [{"content": text} for text in cut(draw(WORDS), draw(cuts))]
    if draw(st.booleans()):
        deltas = [{**NULLS, **delta} for delta in deltas]
    for at in sorted(draw(st.sets(st.integers(1, 30))), reverse=True) if is_ordered else ():
        if at < len(deltas) and not deltas[at - 1].keys() & deltas[at].keys():
            deltas[at - 1 : at + 1] = [deltas[at - 1] | deltas[at]]  # a chunk with several fields
    return deltas


def chunks_of(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A token each; the last delta has the finish reason."""
    chunks = []
    for number, delta in enumerate(deltas, 1):
        choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if number == len(deltas) else None}
        choice |= {"token_ids": [9 + number], "logprobs": {"content": [{"token": "x", "logprob": -0.5}]}}
        head = {"id": "chatcmpl-r", "created": 1, "model": "policy", "weight_version": 3, "prompt_token_ids": [1, 2]}
        chunks.append({**head, "choices": [choice]})
    return [*chunks, {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": len(deltas)}}]


def events_of(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def join_chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message as a client adds it up."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for delta in (choice["delta"] for event in events for choice in event["choices"]):
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        for part in delta.get("tool_calls") or ():
            if part["index"] == len(message["calls"]):
                message["calls"].append([part["id"], part["function"]["name"], ""])
            message["calls"][part["index"]][2] += part["function"].get("arguments") or ""
    return message


def join_response(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The items as deltas add up, each closed before the next begins."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    is_open = False
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind in ("output_item.added", "output_item.done"):
            assert is_open == (kind == "output_item.done")
            is_open = not is_open
            item = event["item"]
            if is_open and item["type"] == "function_call":
                message["calls"].append([item["call_id"], item["name"], ""])
        elif kind == "output_text.delta":
            message["content"] += event["delta"]
        elif kind == "reasoning_text.delta":
            message["reasoning"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            message["calls"][-1][2] += event["delta"]
    assert events[-1]["type"] == "response.completed" and not is_open
    return message


def join_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The blocks as deltas add up, each closed before the next begins."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    open_block = None
    for event in events:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block, block = event["index"], event["content_block"]
            if block["type"] == "tool_use":
                message["calls"].append([block["id"], block["name"], ""])
        elif event["type"] == "content_block_delta":
            assert open_block == event["index"]
            delta = event["delta"]
            message["content"] += delta.get("text", "")
            message["reasoning"] += delta.get("thinking", "")
            if "partial_json" in delta:
                message["calls"][-1][2] += delta["partial_json"]
        elif event["type"] == "content_block_stop":
            assert open_block == event["index"]
            open_block = None
    assert events[-1]["type"] == "message_stop"
    return message


JOIN = {"chat/completions": join_chat, "responses": join_response, "messages": join_message}


class Answer:
    """One answer in an API, fed by an engine whose nodes have parsers."""

    def __init__(self, path: str, body: dict[str, Any], stream: bool) -> None:
        self.dialect = APIS[path].parse({"model": "policy", **body, "stream": stream}, TokenHistory())
        self.completion = StreamAccumulator(self.dialect.call, {})
        self.completion.request(4096, ["tool"])
        self.events = self.dialect.events()
        self.data = b""

    def feed(self, chunk: dict[str, Any]) -> None:
        for visible in self.completion.to_agent_chunks(self.completion.feed(chunk)):
            self.data += self.events.on_chunk(visible)

    def end(self, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the message that the agent has, and the recorded one."""
        for visible in self.completion.end_chunks() or ():
            self.data += self.events.on_chunk(visible)
        self.data += self.events.finish()
        (choice,) = self.completion.sampled_choices()
        return JOIN[path](events_of(self.data)), json.loads(choice.response)


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the form of the joined ones."""
    calls = [
        [call["id"], call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())
    ]
    return {"content": message["content"] or "", "reasoning": message.get("reasoning") or "", "calls": calls}


def check(path: str, deltas: list[dict[str, Any]], body: dict[str, Any]) -> None:
    """The stream, the record and the answer without a stream are one message."""
    streamed, whole = Answer(path, body, True), Answer(path, body, False)
    for chunk in chunks_of(deltas):
        streamed.feed(chunk)
        whole.completion.feed(chunk)
    assert streamed.completion.is_live
    joined, recorded = streamed.end(path)
    unstreamed = whole.completion.to_response()
    assert recorded == unstreamed["choices"][0]["message"]
    if path == "messages":
        answer = whole.dialect.answer(unstreamed)
        inputs = [block["input"] for block in answer["content"] if block["type"] == "tool_use"]
        expected = plain(recorded)
        for call, (_, _, arguments), value in zip(joined["calls"], expected["calls"], inputs, strict=True):
            is_beginning = body is EAGER and arguments.startswith(call[2])  # of a malformed one, or all of it
            assert is_beginning or json.loads(call[2]) == value
            call[2] = ""
        assert joined == {**expected, "calls": [[*call[:2], ""] for call in expected["calls"]]}
    else:
        assert joined == plain(recorded)


@pytest.mark.parametrize("path", BODIES)
@given(streams())
def test_a_stream_adds_up_to_the_answer_and_the_record(path: str, deltas: list[dict[str, Any]]) -> None:
    check(path, deltas, BODIES[path])


@given(streams())
def test_an_eager_tools_stream_adds_up_too(deltas: list[dict[str, Any]]) -> None:
    check("messages", deltas, EAGER)


@pytest.mark.parametrize("path", BODIES)
@given(streams(is_ordered=True))
def test_items_and_blocks_are_those_of_the_answer(path: str, deltas: list[dict[str, Any]]) -> None:
    """All answers are equal to the last byte if an engine's text stands before its calls."""
    if path == "chat/completions":
        return
    streamed, whole = Answer(path, BODIES[path], True), Answer(path, BODIES[path], False)
    for chunk in chunks_of(deltas):
        streamed.feed(chunk)
        whole.completion.feed(chunk)
    streamed.end(path)
    answer = whole.dialect.answer(whole.completion.to_response())
    events = events_of(streamed.data)
    if path == "responses":
        assert events[-1]["response"]["output"] == answer["output"]
        return
    blocks = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert blocks == [block["type"] for block in answer["content"]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", BODIES)
def test_every_shape_adds_up(path: str, shape: str) -> None:
    check(path, [{"role": "assistant", "content": "So: "}, *SHAPES[shape][0], {}], BODIES[path])


def test_arguments_come_while_they_are_sampled() -> None:
    answer = Answer("chat/completions", BODIES["chat/completions"], True)
    seen = []
    texts = ['{"a', '": "', " 1 ", ' 2"}']
    deltas = [{"content": "So "}, {"content": " "}, piece(0, "c", "add"), *(piece(0, text=text) for text in texts)]
    for chunk in chunks_of([*deltas, {}])[:-2]:
        answer.feed(chunk)
        seen.append(join_chat(events_of(answer.data)))
    assert [message["content"] for message in seen] == ["So ", *["So  "] * 6]
    assert [message["calls"][0][2] for message in seen[3:]] == ["".join(texts[: at + 1]) for at in range(4)]


@pytest.mark.parametrize(
    ("request_parsers", "fields"),
    [
        ([], {}),
        (["reasoning"], {}),
        (["tool"], {"tool_choice": "required"}),
        (["tool"], {"n": 2}),
        (["tool"], {"tools": [{"type": "function", "function": {"name": "add", "strict": True}}]}),
        (["tool"], {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        (["tool"], {"messages": ["x", 1, None]}),
        (["tool"], {"tools": 1}),
        (["tool"], {"tools": [1]}),
        (["tool"], {"tools": [{"function": "add"}]}),
    ],
)
def test_an_answer_that_might_begin_anew_does_not_come_early(
    request_parsers: list[str], fields: dict[str, Any]
) -> None:
    body = {"model": "policy", **BODIES["chat/completions"], "stream": True, **fields}
    call = APIS["chat/completions"].parse(body, TokenHistory()).call
    completion = StreamAccumulator(call, {})
    completion.request(4096, request_parsers)
    is_text = fields.get("messages") == ["x", 1, None]
    assert completion.is_live == is_text, "messages that are no objects have no images"
    assert not StreamAccumulator(call, {}, pinned=3).is_live


def resume(deltas: list[dict[str, Any]], at: int, parsed: dict[str, Any] | None) -> tuple[Answer, Any]:
    """Break off after ``at`` deltas; what the rest, parsed with the beginning, adds."""
    answer = Answer("chat/completions", BODIES["chat/completions"], True)
    for chunk in chunks_of(deltas)[:at]:
        answer.feed(chunk)
    path, body = answer.completion.request(4096)
    assert path == "/v1/completions" and body["prompt"] == [1, 2, *range(10, 10 + at)]
    before = answer.data
    choice = {"index": 0, "text": "rest", "token_ids": [99], "finish_reason": "stop"}
    rest = {"id": "c", "weight_version": 4, "choices": [{**choice, "logprobs": {"token_logprobs": [-0.25]}}]}
    answer.feed(rest)
    assert answer.data == before and answer.completion.has_ended and answer.completion.needs_parsing
    if parsed is not None:
        answer.completion.use_parsed([{"index": 0, "message": parsed, "finish_reason": "tool_calls"}])
    return answer, answer.completion.end_chunks()


@given(st.text(st.sampled_from("\n ab"), max_size=5), objects(WHOLE_WORDS), STYLES, st.data())
def test_a_broken_answer_ends_as_it_is_parsed(
    text: str, value: Any, style: dict[str, Any], data: st.DataObject
) -> None:
    """Parsers of whole texts strip the text and write JSON anew; the agent's part stays, and its rest is right."""
    arguments = json.dumps(value, ensure_ascii=False, separators=style.get("separators"))
    pieces = cut(arguments, data.draw(st.lists(st.integers(0, 40), max_size=4)))
    deltas = [
        {"role": "assistant", "content": text},
        piece(0, "call_0", "add"),
        *(piece(0, text=each) for each in pieces),
    ]
    at = data.draw(st.integers(1, len(deltas)))
    function = {"name": "add", "arguments": json.dumps(value, ensure_ascii=False)}
    parsed = {"content": text.strip() or None, "tool_calls": [{"id": "z", "type": "function", "function": function}]}
    answer, chunks = resume([*deltas, {}], at, parsed)
    assert chunks
    joined, recorded = answer.end("chat/completions")
    assert joined == plain(recorded) and joined["content"].strip() == text.strip()
    ((id, name, joined_arguments),) = joined["calls"]
    assert (id, name) == ("call_0" if at > 2 else "z", "add") and json.loads(joined_arguments) == json.loads(arguments)
    (choice,) = answer.completion.sampled_choices()
    assert (
        choice.response_ids == array("I", [*range(10, 10 + at), 99]).tobytes() and choice.finish_reason == "tool_calls"
    )


CALL = [{"role": "assistant", "content": "So: "}, piece(0, "call_0", "add", '{"a"'), piece(0, text=": 1}")]


@pytest.mark.parametrize(
    "parsed",
    [
        None,
        {"content": "So: <tool_call>"},
        {"content": "So:", "tool_calls": [{"id": "z", "function": {"name": "sub", "arguments": '{"a": 1}'}}]},
        {"content": "So:", "tool_calls": [{"id": "z", "function": {"name": "add", "arguments": '{"b": 1}'}}]},
        {"content": "So:", "tool_calls": [{"id": "z", "function": {"name": "add", "arguments": "a 1"}}]},
    ],
)
def test_a_broken_answer_that_is_parsed_with_another_beginning_has_no_end(parsed: dict[str, Any] | None) -> None:
    _, chunks = resume(CALL, 2, parsed)
    assert chunks is None
