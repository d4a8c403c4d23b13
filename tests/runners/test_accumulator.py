"""An engine's stream becomes a model call and the agent's response."""

import json
from array import array
from typing import Any

import pytest

from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.runners.protocol.answers.engine_errors import InvalidEngineOutputError
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.spans import VersionSpan


def chunk(version: int | None, ids: list[int], text: str, **more: Any) -> dict[str, Any]:
    fields = {"index": 0, "delta": {"content": text}, "token_ids": ids, "finish_reason": None, **more}
    fields["logprobs"] = {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}
    whole: dict[str, Any] = {"id": "c", "created": 1, "model": "policy", "choices": [fields]}
    return whole if version is None else {"weight_version": version, **whole}


def collected(*chunks: dict[str, Any], pinned: int | None = None, **body: Any) -> StreamAccumulator:
    call = ChatRequest.parse({"model": "policy:writer", "messages": [], **body}, chat=True)
    completion = StreamAccumulator(call, {"temperature": 0.5}, pinned)
    for item in chunks:
        completion._feed_chunk(item)
    return completion


FIRST = {"prompt_token_ids": [1, 2, 3]}


def test_a_stream_over_a_swap_keeps_the_version_of_every_token() -> None:
    chunks = [FIRST | chunk(4, [7], "a"), chunk(4, [8, 9], "b"), chunk(5, [10], "c", finish_reason="stop")]
    (part,) = collected(*chunks).sampled_choices()
    assert array("I", part.response_ids).tolist() == [7, 8, 9, 10]
    assert array("I", part.prompt_ids).tolist() == [1, 2, 3]
    assert array("f", part.logprobs).tolist() == [-0.5] * 4
    assert part.weight_versions == (VersionSpan(version=4, start=0, end=3), VersionSpan(version=5, start=3, end=4))
    assert json.loads(part.response) == {"role": "assistant", "content": "abc"}
    assert part.sampling == {"temperature": 0.5}


def test_every_token_has_the_engine_that_sampled_it() -> None:
    first, second = {"engine_id": "n:1"}, {"engine_id": "m:2"}
    chunks = [
        FIRST | first | chunk(4, [7], "a"),
        first | chunk(4, [8], "b"),
        second | chunk(4, [9], "c", finish_reason="stop"),
    ]
    completion = collected(*chunks)
    (part,) = completion.sampled_choices()
    assert part.weight_versions == (
        VersionSpan(version=4, start=0, end=2, engine_id="n:1"),
        VersionSpan(version=4, start=2, end=3, engine_id="m:2"),
    )
    assert "engine_id" not in completion.to_agent_chunks(chunks[1])[0], "agents do not see it"


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([FIRST | chunk(None, [7], "a")], "did not say which weight version"),
        ([FIRST | chunk(4, [7], "a")], "ended early"),
        ([chunk(4, [7], "a", finish_reason="stop")], "no prompt token ids"),
        ([FIRST | chunk(4, [7], "a", finish_reason="stop", logprobs=None)], None),
        ([{"error": {"message": "boom"}}], "boom"),
        ([], "without an answer"),
    ],
)
def test_an_answer_that_cannot_be_recorded_exactly_is_not_used(
    chunks: list[dict[str, Any]], reason: str | None
) -> None:
    if reason is None:
        chunks[0]["choices"][0]["logprobs"] = None
        reason = "1 tokens came with 0 log-probabilities"
    with pytest.raises(InvalidEngineOutputError, match=reason):
        list(collected(*chunks).sampled_choices())


def test_a_pinned_answer_of_another_version_is_not_used() -> None:
    mixed = (FIRST | chunk(4, [7], "a"), chunk(5, [8], "b", finish_reason="stop"))
    assert len(list(collected(*mixed).sampled_choices())) == 1
    with pytest.raises(InvalidEngineOutputError, match="another version than 4"):
        list(collected(*mixed, pinned=4).sampled_choices())


def test_the_agent_sees_nothing_it_did_not_ask_for() -> None:
    completion = collected(FIRST | chunk(4, [7], "a", finish_reason="stop"))
    (displayed,) = completion.to_agent_chunks(FIRST | chunk(4, [7], "a"))
    assert set(displayed) == {"id", "created", "model", "choices"}
    assert set(displayed["choices"][0]) == {"index", "delta", "finish_reason"}
    whole = completion.to_response()
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "a"}
    assert whole["choices"][0]["logprobs"] is None
    request = collected(FIRST | chunk(4, [7], "a", finish_reason="stop"), logprobs=True, return_token_ids=True)
    assert request.to_response()["choices"][0]["token_ids"] == [7]
    assert request.to_response()["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5


def test_streamed_tool_calls_are_put_together() -> None:
    pieces = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ]
    chunks = [FIRST | chunk(1, [7], ""), chunk(1, [8], "", finish_reason="tool_calls")]
    for item, piece in zip(chunks, pieces, strict=True):
        item["choices"][0]["delta"] = {"tool_calls": [piece]}
    message = collected(*chunks).to_response()["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]


@pytest.mark.parametrize("body", [[], {"messages": []}, {"model": "policy"}, {"model": "policy", "messages": "hello"}])
def test_a_request_that_is_none_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match="the request"):
        ChatRequest.parse(body, chat=True)


@pytest.mark.parametrize("is_named_by_id", [True, False])
def test_the_record_has_the_texts_of_tokens_beside_the_ids_of_likely_ones(is_named_by_id: bool) -> None:
    """Read entries of vLLM: the name is the id on request, and the bytes of a sampled token are its text."""

    def entry(token_id: int, text: str) -> dict[str, Any]:
        names = [f"token_id:{each}" if is_named_by_id else text for each in (token_id, 3)]
        others = [{"token": name, "logprob": -0.5, "bytes": list(name.encode())} for name in names]
        return {"token": names[0], "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": others}

    entries = [entry(7, "ä"), entry(8, ""), entry(9, "\N{REPLACEMENT CHARACTER}")]
    answer = FIRST | chunk(4, [7, 8, 9], "ä", finish_reason="stop")
    answer["choices"][0]["logprobs"] = {"content": entries}
    options = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": is_named_by_id}
    (part,) = collected(answer, **options).sampled_choices()
    assert part.token_texts == ("ä", "", "\N{REPLACEMENT CHARACTER}")


def test_a_prompt_of_tokens_goes_where_a_nodes_parser_of_thoughts_is() -> None:
    """The completions route leaves thoughts in the text; a chunk of either route has its own form."""
    call = ChatRequest.parse({"model": "policy", "messages": [{"role": "user", "content": "x"}]}, chat=True)
    completion = StreamAccumulator(call, {}, prompt=[1, 2])
    path, body = completion.request(100, ["reasoning"])
    assert (path, body["kv_transfer_params"]) == ("/v1/chat/completions", {"prompt_token_ids": [1, 2]})
    thought = chunk(4, [7], "", delta={"reasoning": "hm"})
    assert completion.feed({**thought, "prompt_token_ids": [1, 2]}) == {**thought, "prompt_token_ids": [1, 2]}
    path, body = completion.request(100, ["tool"])
    assert (path, body["prompt"]) == ("/v1/completions", [1, 2])
    part = {"index": 0, "text": "y", "token_ids": [8], "logprobs": {"token_logprobs": [-0.25]}}
    (choice,) = completion.feed({"weight_version": 4, "choices": [part]})["choices"]
    assert choice["delta"]["content"] == "y"
