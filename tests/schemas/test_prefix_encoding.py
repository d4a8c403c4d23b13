"""Prompts encoded as prefixes of earlier calls, and expanded again."""

from array import array
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lightningbus.schemas.spans import ModelCall
from lightningbus.schemas.trajectory.prefix_encoding import (
    CorruptPromptError,
    PrefixEncoder,
    common_prefix_len,
    expand_calls,
)

Ids = list[int]


def tokens(ids: Ids) -> bytes:
    return array("I", ids).tobytes()


def encode_all(calls: list[tuple[Ids, Ids, str]]) -> list[ModelCall]:
    """Calls as a runner encodes them, from (prompt, response, request)."""
    prompts, requests = PrefixEncoder(), PrefixEncoder(unit=1)
    encoded_calls = []
    for index, (prompt, response, request) in enumerate(calls):
        encoded_prompt = prompts.encode(tokens(prompt), tokens(response))
        encoded_request = requests.encode(request.encode())
        encoded_calls.append(
            ModelCall(
                index=index,
                model="policy",
                node="n",
                prompt_prefix_refs=encoded_prompt.prefix_refs,
                prompt_ids=encoded_prompt.suffix,
                prompt_sha256=encoded_prompt.sha256,
                response_ids=tokens(response),
                logprobs=b"",
                weight_versions=(),
                request_prefix_refs=encoded_request.prefix_refs,
                request=encoded_request.suffix.decode(),
            )
        )
    return encoded_calls


few = st.lists(st.integers(0, 2), max_size=6)  # few tokens, so that prompts often share some


@st.composite
def attempts(draw: st.DrawFn) -> list[tuple[Ids, Ids, str]]:
    """Calls that extend a whole earlier one, a part of it, or nothing."""
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
def test_every_prompt_is_restored_whatever_the_agent_did_with_its_history(calls: list[tuple[Ids, Ids, str]]) -> None:
    expanded = expand_calls(encode_all(calls))
    assert [call.prompt_ids for call in expanded] == [tokens(prompt) for prompt, *_ in calls]
    assert [call.request for call in expanded] == [request for *_, request in calls]
    assert [call.prompt_sha256 for call in expanded] == [sha256(tokens(prompt)).digest() for prompt, *_ in calls]
    assert all(call.prompt_prefix_refs == call.request_prefix_refs == () for call in expanded)


def test_a_conversation_keeps_each_token_once() -> None:
    prompt: Ids = []
    calls = []
    for turn in range(100):
        prompt = [*prompt, *range(turn, turn + 50)]
        calls.append((prompt, [turn, turn], ""))
        prompt = [*prompt, turn, turn]
    encoded_calls = encode_all(calls)
    assert sum(len(call.prompt_ids) // 4 for call in encoded_calls) == 100 * 50
    assert len(encoded_calls[-1].prompt_prefix_refs) == 99


def test_a_missing_or_changed_earlier_call_is_reported() -> None:
    first, second = encode_all([([1, 2, 3], [4], "a"), ([1, 2, 3, 4, 5], [6], "ab")])
    with pytest.raises(CorruptPromptError, match="call 1 refers to call 0, which is missing"):
        expand_calls([second])
    with pytest.raises(CorruptPromptError, match="the prompt of call 1 does not match its digest"):
        expand_calls([replace(first, prompt_sha256=b"", prompt_ids=tokens([1, 2, 9])), second])


def test_a_text_over_the_limit_is_cut_between_characters_and_can_be_extended() -> None:
    texts = PrefixEncoder(unit=1, limit=5)
    first = texts.encode("aééé".encode())
    assert (first.suffix.decode(), first.truncated_bytes) == ("aéé", 2)
    second = texts.encode("aéééb".encode())
    assert (second.prefix_refs, second.suffix.decode()) == (((0, 5),), "éb")


@given(st.binary(max_size=40), st.binary(max_size=40))
@settings(deadline=None)
def test_common_prefix_length(text: bytes, other: bytes) -> None:
    length = common_prefix_len(text, other)
    assert text[:length] == other[:length]
    assert length == min(len(text), len(other)) or text[length] != other[length]
