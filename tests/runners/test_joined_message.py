"""Deltas of a streamed message, however they are cut, add up to the message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.runners.protocol.answers.joined_message import JoinedMessage

NULLS = {"content": None, "reasoning": None, "tool_calls": None, "function_call": None, "refusal": None}


def joined(*deltas: dict[str, Any]) -> dict[str, Any]:
    message = JoinedMessage()
    for delta in deltas:
        message.add(delta)
    return message.whole("chatcmpl-r")


def piece(index: int | None = 0, id: str | None = None, name: str | None = None, text: str | None = None) -> Any:
    """A delta of one piece of a call, without what is None."""
    function = {key: value for key, value in (("name", name), ("arguments", text)) if value is not None}
    fields = {"index": index, "id": id, "function": function or None}
    return {"tool_calls": [{key: value for key, value in fields.items() if value is not None}]}


def calls(message: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


def test_a_null_adds_nothing() -> None:
    deltas = [{"role": "assistant", "content": "Let me "}, {"content": "see."}, {"content": None, **piece(id="a")}]
    assert joined(*deltas, {"content": None})["content"] == "Let me see."
    assert joined({"reasoning": "I think"}, {"reasoning": None, "content": "so"}, NULLS) == {
        "role": "assistant", "content": "so", "reasoning": "I think",
    }  # fmt: skip
    assert joined(NULLS) == {"role": "assistant", "content": None}


A, B = ("a", "add", '{"x": 1}'), ("b", "sub", '{"y": 2}')
START_A, END_A = {"id": "a", "name": "add", "text": '{"x"'}, {"text": ": 1}"}
START_B, END_B = {"id": "b", "name": "sub", "text": '{"y"'}, {"text": ": 2}"}
WHOLE_A, WHOLE_B = {"name": "add", "text": '{"x": 1}'}, {"name": "sub", "text": '{"y": 2}'}
NO_INDEX: dict[str, Any] = {"index": None}
SHAPES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "the name after the arguments": (
        [piece(id="a"), piece(text='{"x"'), piece(text=": 1}"), piece(name="add")],
        [A],
    ),
    "the id last": ([piece(**WHOLE_A), piece(id="a")], [A]),
    "no function until later": (
        [{"tool_calls": [{"index": 0, "id": "a", "function": None}]}, piece(name="add"), piece(text='{"x": 1}')],
        [A],
    ),
    "the name in every piece": ([piece(**START_A), piece(id="a", name="add", **END_A)], [A]),
    "the name in every piece, and no id": (
        [piece(name="add", text='{"x"'), piece(name="add", text=": 1}"), piece(id="a")],
        [A],
    ),
    "one index for two calls": ([piece(**START_A), piece(**END_A), piece(**START_B), piece(**END_B)], [A, B]),
    "one index for two calls, interleaved by id": (
        [piece(**START_A), piece(**START_B), piece(id="a", **END_A), piece(id="b", **END_B)],
        [A, B],
    ),
    "no index": (
        [piece(**NO_INDEX, **part) for part in (START_A, END_A, START_B, END_B)],
        [A, B],
    ),
    "no index, interleaved by id": (
        [piece(**NO_INDEX, **part) for part in (START_A, START_B, {"id": "a", **END_A}, {"id": "b", **END_B})],
        [A, B],
    ),
    "interleaved by index": (
        [piece(0, **START_A), piece(1, **START_B), piece(0, **END_A), piece(1, **END_B)],
        [A, B],
    ),
    "the second first": ([piece(1, "b", **WHOLE_B), piece(0, "a", **WHOLE_A)], [A, B]),
    "whole calls of one index and no id": (
        [piece(0, None, **WHOLE_A), piece(0, None, **WHOLE_B)],
        [("call_r_0", *A[1:]), ("call_r_1", *B[1:])],
    ),
    "whole calls of one function, one index and an empty id": (
        [piece(0, "", "add", '{"x": 1}'), piece(0, "", "add", '{"x": 2}')],
        [("call_r_0", "add", '{"x": 1}'), ("call_r_1", "add", '{"x": 2}')],
    ),
    "one id for all": ([piece(0, "0", **WHOLE_A), piece(1, "0", **WHOLE_B)], [("0", *A[1:]), ("0", *B[1:])]),
    "arguments that are no text": (
        [{"tool_calls": [{"id": "a", "function": {"name": "add", "arguments": {"x": 1}}}]}],
        [A],
    ),
    "both in one delta": ([{"tool_calls": [*piece(0, *A)["tool_calls"], *piece(1, *B)["tool_calls"]]}], [A, B]),
    "no arguments": ([piece(id="a", name="add")], [("a", "add", "")]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_of_calls_are_put_together(shape: str) -> None:
    deltas, expected = SHAPES[shape]
    message = joined(*[{**NULLS, **delta} for delta in deltas])
    assert calls(message) == expected
    assert {call["type"] for call in message["tool_calls"]} == {"function"}


def test_content_of_parts_is_kept_beside_text() -> None:
    thought = {"type": "thinking", "thinking": "so"}
    assert joined({"content": [thought]}, {"content": "yes"}, {"content": None})["content"] == [
        thought,
        {"type": "text", "text": "yes"},
    ]
    pieces: list[dict[str, Any]] = [{"name": "add"}, {"arguments": "{"}, {"arguments": "}"}]
    message = joined(*[{"function_call": part} for part in pieces])
    assert message["function_call"] == {"name": "add", "arguments": "{}"}


def test_halves_of_a_character_are_joined_and_single_ones_replaced() -> None:
    message = joined({"content": "\ud83d"}, {"content": "\ude00 \ud83d"}, piece(id="a", name="f", text='"\ude00'))
    assert message["content"] == "😀 ?"
    assert calls(message) == [("a", "f", '"?')]


TEXTS = st.text(max_size=6)
CALLS = st.lists(st.tuples(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), st.text(min_size=1, max_size=8)), max_size=4)


@given(TEXTS, TEXTS, CALLS, st.booleans(), st.randoms(use_true_random=False))
def test_however_it_is_cut_it_adds_up(
    content: str, thought: str, functions: list[tuple[str, str]], indexed: bool, random: Any
) -> None:
    """Pieces of each call in their order, those of different calls and the texts mixed; nulls everywhere."""
    pieces: list[list[dict[str, Any]]] = [
        [{"content": character} for character in content],
        [{"reasoning": character} for character in thought],
    ]
    for number, (name, arguments) in enumerate(functions):
        own_pieces = [piece(number, name=name), *[piece(number, text=character) for character in arguments]]
        first, rest = own_pieces[0], own_pieces[1:]
        rest.insert(random.randint(0, len(rest)), first)
        fields = [delta["tool_calls"][0] for delta in rest]
        for at, field in enumerate(fields):
            if not indexed:
                del field["index"]
            if not indexed or at == 0:
                field["id"] = f"id{number}"
        pieces.append(rest)
    deltas = []
    while any(pieces):
        deltas.append({**random.choice(({}, NULLS)), **random.choice([part for part in pieces if part]).pop(0)})
    message = joined(*deltas)
    assert ((message["content"] or ""), message.get("reasoning", "")) == (content, thought)
    order = {call[0]: call for call in calls(message)} if functions else {}
    assert order == {
        f"id{number}": (f"id{number}", name, arguments) for number, (name, arguments) in enumerate(functions)
    }
