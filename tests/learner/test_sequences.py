"""Calls into a forest and into rows: whatever an agent does, every sampled token is trained exactly once."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.learner.transitions.prefix_tree import find_parents, find_prefix_breaks
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import Transition, build_transitions
from lightningbus.schemas.spans import ModelCall
from tests.factories import model_call

MERGED = SequenceConfig(max_tokens=64)


def forest(*calls: ModelCall) -> list[Transition]:
    return build_transitions(calls)


def trained(rows: Sequence[TrainSequence]) -> list[tuple[int, int, int]]:
    """(call, token, tokens before it) of everything trained, in order of the calls."""
    actual = []
    for row in rows:
        for at in np.flatnonzero(row.trained):
            actual.append((int(row.call_index[at]), int(row.token_ids[at]), int(at)))
    return sorted(actual)


def sampled(calls: Sequence[Transition]) -> list[tuple[int, int, int]]:
    """The same of everything that was sampled."""
    return sorted(
        (call.index, int(token), len(call.prompt_ids) + at)
        for call in calls
        for at, token in enumerate(call.response_ids)
    )


A1, A2 = model_call(0, [1, 2], [3, 4]), model_call(2, [1, 2, 3, 4, 5], [6])
B1, B2 = model_call(1, [11, 12], [13]), model_call(3, [11, 12, 13, 14], [15, 16])


@pytest.mark.parametrize(
    ("calls", "expected", "rows"),
    [
        ([A1, B1, A2, B2], [None, None, 0, 1], 2),
        ([model_call(0, [1], [2]), model_call(1, [1], [3]), model_call(2, [1, 3, 4], [5])], [None, None, 1], 2),
        ([model_call(0, [1], [2]), model_call(1, [1, 2, 3], [4]), model_call(2, [1, 2, 5], [6])], [None, 0, 0], 2),
        ([model_call(0, [1], [2, 3]), model_call(1, [1, 2, 3], [4])], [None, 0], 1),
        ([model_call(0, [1], [2]), model_call(1, [1, 9, 2, 3], [4])], [None, None], 2),
        ([model_call(0, [1], [2]), model_call(1, [1], [2]), model_call(2, [1, 2, 3], [4])], [None, None, 0], 2),
        ([model_call(0, [1, 2, 3], [4]), model_call(1, [1, 2], [3])], [None, None], 2),
    ],
    ids=[
        "interleaved agents",
        "best of two, the second goes on",
        "parallel calls on one history",
        "no new tokens",
        "edited history",
        "two equal samples",
        "a prompt within a prompt",
    ],
)
def test_calls_form_a_forest_by_exact_prefix(calls: list[ModelCall], expected: list[int | None], rows: int) -> None:
    built = forest(*calls)
    assert find_parents(built) == expected
    merged, left_out = build_sequences("r", built, MERGED)
    assert len(merged) == rows and not left_out
    assert trained(merged) == sampled(built)


tokens = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@st.composite
def agents(draw: st.DrawFn) -> list[ModelCall]:
    """An agent that now goes on with one of its contexts, now with a part of one, now with something else."""
    contexts: list[list[int]] = [[]]
    calls = []
    for index in range(draw(st.integers(1, 7))):
        base = draw(st.sampled_from(contexts))
        cut = draw(st.one_of(st.just(len(base)), st.integers(0, len(base))))
        prompt, response = base[:cut] + draw(tokens), draw(tokens)
        role, warm = draw(st.sampled_from(["", "judge"])), draw(st.sampled_from([1.0, 1.0, 0.7]))
        calls.append(
            model_call(index, prompt, response, version=index, role=role, sampling_params={"temperature": warm})
        )
        contexts.append(prompt + response)
    return calls


@given(agents(), st.sampled_from(["transition", "trajectory"]), st.sampled_from(["mask", "split"]), st.integers(4, 30))
def test_every_sampled_token_is_trained_exactly_once_or_has_a_reason(
    calls: list[ModelCall], mode: Any, overlong: Any, limit: int
) -> None:
    built = forest(*calls)
    rows, left_out = build_sequences("r", built, SequenceConfig(["", "x"], mode, limit, overlong))
    kept = [call for place, call in enumerate(built) if place not in left_out]
    assert sorted((call, token) for call, token, _ in trained(rows)) == sorted(
        (call, token) for call, token, _ in sampled(kept)
    )
    for place, why in left_out.items():
        assert why == "role" if built[place].role == "judge" else why == "too long" and overlong == "mask"
    for row in rows:
        assert len(row.token_ids) <= limit and row.num_tokens > 0
        assert not row.trained[0], "nothing predicts the first token of a row"
        whole = {int(call) for call in row.call_index[row.trained]}
        assert {built[call].temperature for call in whole} == {row.temperature}
        np.testing.assert_array_equal(row.weight_versions[row.trained], row.call_index[row.trained])
    if overlong == "mask":
        assert trained(rows) == sampled(kept), "each behind exactly what it was sampled behind"
    if mode == "transition" and overlong == "mask":
        assert [row.num_tokens for row in rows] == [call.num_tokens for call in kept]


def test_what_shares_a_prefix_is_context_in_all_rows_but_one() -> None:
    built = forest(model_call(0, [1], [2]), model_call(1, [1, 2, 3], [4]), model_call(2, [1, 2, 5], [6]))
    rows, _ = build_sequences("r", built, MERGED)
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert [row.call_index.tolist() for row in rows] == [[-1, -1, -1, 1], [-1, 0, -1, 2]]


def test_a_call_that_is_too_long_is_left_out_or_trained_in_windows() -> None:
    (long,) = forest(model_call(0, list(range(1, 11)), list(range(11, 18))))
    assert build_sequences("r", [long], SequenceConfig(max_tokens=8)) == ([], {0: "too long"})
    rows, left_out = build_sequences("r", [long], SequenceConfig(max_tokens=8, overlong="split"))
    assert not left_out
    assert [row.token_ids.tolist() for row in rows] == [list(range(7, 15)), list(range(10, 18))]
    assert [row.token_ids[row.trained].tolist() for row in rows] == [[11, 12, 13, 14], [15, 16, 17]]


def chat_call(index: int, messages: list[Any], answer: str, prompt: list[int], response: list[int]) -> ModelCall:
    request = json.dumps({"messages": messages})
    return model_call(
        index, prompt, response, request=request, response=json.dumps({"role": "assistant", "content": answer})
    )


def text(ids: Sequence[int]) -> str:
    """Tokens 7 and 8 say together what 9 says alone."""
    return "".join({7: "ab", 8: "c", 9: "abc"}.get(item, f"<{item}>") for item in ids)


USER = {"role": "user", "content": "hello"}
HELLO = chat_call(0, [USER], "abc", [1], [7, 8])
HISTORY = [USER, {"role": "assistant", "content": "abc", "tool_calls": None}]
NEXT = {"role": "user", "content": "and?"}


def test_a_call_that_extends_only_an_earlier_turn_breaks_the_path() -> None:
    more = [*HISTORY, NEXT, {"role": "assistant", "content": "xy"}, NEXT]
    calls = [
        HELLO,
        chat_call(1, [*HISTORY, NEXT], "xy", [1, 7, 8, 2], [3]),
        chat_call(2, more, "z", [1, 7, 8, 2, 5, 2], [3]),
        chat_call(3, [*HISTORY, NEXT], "another sample", [1, 7, 8, 2], [4]),
    ]
    parents = find_parents(forest(*calls))
    assert parents == [None, 0, 0, 0]
    assert find_prefix_breaks(calls, parents, text) == {2: "template"}


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (chat_call(1, [*HISTORY, NEXT], "x", [1, 7, 8, 2], [3]), {}),
        (chat_call(1, [*HISTORY, NEXT], "x", [1, 9, 2], [3]), {1: "re-tokenised"}),
        (chat_call(1, [*HISTORY, NEXT], "x", [1, 5, 7, 8, 2], [3]), {1: "template"}),
        (
            chat_call(1, [USER, {"role": "assistant", "content": "short"}, NEXT], "x", [1, 4, 2], [3]),
            {1: "edited history"},
        ),
        (chat_call(1, [USER], "x", [1], [4]), {}),
        (chat_call(1, [{"role": "user", "content": "other"}, NEXT], "x", [6], [4]), {}),
        (chat_call(1, [USER, NEXT], "x", [1, 6], [4]), {}),
    ],
    ids=["unbroken", "re-tokenised", "template", "edited history", "another sample", "another conversation", "helper"],
)
def test_a_break_in_a_conversation_has_its_reason(second: ModelCall, why: dict[int, str]) -> None:
    assert find_prefix_breaks([HELLO, second], find_parents(forest(HELLO, second)), text) == why
