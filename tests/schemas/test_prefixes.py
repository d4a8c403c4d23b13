"""Prompts shortened by what earlier calls hold, and put together again."""

from array import array
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.spans import ModelCall
from schemas.trajectory.prefix_encoding import BrokenPrompt, Prefixes, common, whole

Ids = list[int]


def tokens(ids: Ids) -> bytes:
    return array("I", ids).tobytes()


def shortened(calls: list[tuple[Ids, Ids, str]]) -> list[ModelCall]:
    """Calls as a runner makes them of (prompt, response, request)."""
    prompts, requests = Prefixes(), Prefixes(unit=1)
    made = []
    for index, (prompt, response, request) in enumerate(calls):
        kept, digest = prompts.add(tokens(prompt), tokens(response))
        asked, _ = requests.add(request.encode())
        made.append(
            ModelCall(
                index=index,
                model="policy",
                node="n",
                prompt_prefix_refs=kept.prefix,
                prompt_ids=kept.new,
                prompt_sha256=digest,
                response_ids=tokens(response),
                logprobs=b"",
                weight_versions=(),
                request_prefix_refs=asked.prefix,
                request=asked.new.decode(),
            )
        )
    return made


few = st.lists(st.integers(0, 2), max_size=6)  # few tokens, so that prompts often share some


@st.composite
def attempts(draw: st.DrawFn) -> list[tuple[Ids, Ids, str]]:
    """Calls that go on from an earlier one whole, from a part of it, or from nothing."""
    calls: list[tuple[Ids, Ids, str]] = []
    for _ in range(draw(st.integers(1, 8))):
        before: Ids = []
        if calls and draw(st.booleans()):
            prompt, response, _ = calls[draw(st.integers(0, len(calls) - 1))]
            before = [*prompt, *response]
            before = before[: draw(st.integers(0, len(before)))] if draw(st.booleans()) else before
        prompt = [*before, *draw(few)]
        calls.append((prompt, draw(few), "é" * (len(prompt) % 4) + draw(st.text("aé🌍", max_size=6))))
    return calls


@given(attempts())
@settings(max_examples=300, deadline=None)
def test_whatever_the_agent_did_with_its_history_every_prompt_comes_back(calls: list[tuple[Ids, Ids, str]]) -> None:
    found = whole(shortened(calls))
    assert [one.prompt_ids for one in found] == [tokens(prompt) for prompt, *_ in calls]
    assert [one.request for one in found] == [request for *_, request in calls]
    assert [one.prompt_sha256 for one in found] == [sha256(tokens(prompt)).digest() for prompt, *_ in calls]
    assert all(one.prompt_prefix_refs == one.request_prefix_refs == () for one in found)


def test_a_conversation_keeps_each_token_once() -> None:
    prompt: Ids = []
    calls = []
    for turn in range(100):
        prompt = [*prompt, *range(turn, turn + 50)]
        calls.append((prompt, [turn, turn], ""))
        prompt = [*prompt, turn, turn]
    made = shortened(calls)
    assert sum(len(call.prompt_ids) // 4 for call in made) == 100 * 50
    assert len(made[-1].prompt_prefix_refs) == 99


def test_a_prompt_whose_beginning_is_gone_or_another_is_told() -> None:
    first, second = shortened([([1, 2, 3], [4], "a"), ([1, 2, 3, 4, 5], [6], "ab")])
    with pytest.raises(BrokenPrompt, match="call 1 goes on from call 0, which is not there"):
        whole([second])
    with pytest.raises(BrokenPrompt, match="the prompt of call 1 is not what it was"):
        whole([replace(first, prompt_sha256=b"", prompt_ids=tokens([1, 2, 9])), second])


def test_a_text_over_the_limit_is_cut_between_characters_and_gone_on_with() -> None:
    texts = Prefixes(unit=1, limit=5)
    kept, _ = texts.add("aééé".encode())
    assert (kept.new.decode(), kept.left_out) == ("aéé", 2)
    more, _ = texts.add("aéééb".encode())
    assert (more.prefix, more.new.decode()) == (((0, 5),), "éb")


@given(st.binary(max_size=40), st.binary(max_size=40))
@settings(deadline=None)
def test_what_two_texts_begin_with_alike(one: bytes, other: bytes) -> None:
    length = common(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]
