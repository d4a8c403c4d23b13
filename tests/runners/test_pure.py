"""The runner's decisions: rewards, attempts, routing, telemetry, and what is made of an engine's stream."""

import json
from array import array
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from runners import retry_policy
from runners.gateway import routing
from runners.protocol.accumulator import InvalidEngineOutput, StreamAccumulator
from runners.protocol.request import ChatRequest
from runners.recording import otlp, rewards
from runners.recording.attempt import AttemptRecorder
from schemas import ids as identity
from schemas.codec import encode
from schemas.fleet import Heartbeat
from schemas.spans import Span, VersionSpan
from schemas.tasks import Task


def task(**changes: Any) -> Task:
    return Task(**{"id": "t", "run_id": "run", "agent": "default", "input": {}, **changes})


def span(reward: Any, end_ns: int, name: str = "lightningbus.reward") -> Span:
    return Span(trace_id="t", span_id="s", name="x", start_ns=1, end_ns=end_ns, attributes={name: reward})


@pytest.mark.parametrize(
    ("answer", "spans", "expected"),
    [
        ({"value": 1}, [], 1.0),
        ({"value": True}, [], 1.0),
        ({"value": {"reward": 0.5, "text": "x"}}, [], 0.5),
        ({"value": "text", "reward": 0.25}, [span(1.0, 1)], 0.25),
        ({"value": "text"}, [span(0.1, 5), span(0.9, 9), span(0.2, 7)], 0.9),
        ({"value": None}, [span(0.7, 1, "agentlightning.reward.0.value")], 0.7),
    ],
)
def test_reward_comes_from_the_function_the_value_or_the_last_span(
    answer: dict[str, Any], spans: list[Span], expected: float
) -> None:
    from_span = "s" if spans and "reward" not in answer else ""
    assert rewards.resolve_reward(answer, spans) == (expected, from_span)


@pytest.mark.parametrize(
    "answer",
    [{"value": None}, {"value": "9"}, {"value": float("nan")}, {"value": {"reward": "good"}}, {"reward": 1e999}],
)
def test_what_is_not_a_finite_number_is_no_reward(answer: dict[str, Any]) -> None:
    with pytest.raises(rewards.InvalidReward):
        rewards.resolve_reward(answer, [])


def test_only_what_is_not_the_agents_doing_is_tried_again() -> None:
    asked = task(max_attempts=3)
    assert retry_policy.decide_next_action(asked, 1, "infra").retry_after == 1.0
    assert retry_policy.decide_next_action(asked, 2, "infra").retry_after == 2.0
    assert retry_policy.decide_next_action(asked, 3, "infra") == retry_policy.RetryDecision(dead=True)
    assert retry_policy.decide_next_action(asked, 3, "cancelled").retry_after == 0.0
    for outcome in ("ok", "agent_error", "timeout"):
        assert retry_policy.decide_next_action(asked, 1, outcome) == retry_policy.RetryDecision()  # type: ignore[arg-type]
    assert not retry_policy.exhausted(asked, 3) and retry_policy.exhausted(asked, 4)


def node(id: str, state: str = "ready", version: int = 1, inflight: int = 0, **detail: object) -> Heartbeat:
    return Heartbeat(
        role="inference",
        id=id,
        state=state,
        address=f"http://{id}",
        model="policy",
        version=version,
        status={"inflight": inflight, **detail},
        sent_at_ns=1,
    )


def chosen(
    nodes: list[Heartbeat],
    rollout: str = "r",
    last: str = "",
    pinned: int | None = None,
    model: str = "policy",
    preferred: int | None = None,
    **open_calls: int,
) -> str | None:
    found = routing.select_node(nodes, model, rollout, last, pinned, lambda id: open_calls.get(id, 0), preferred)
    return found.id if found else None


def test_a_rollout_stays_with_its_node_and_a_new_one_goes_where_least_is_done() -> None:
    nodes = [node("a", inflight=3), node("b", inflight=1), node("c", inflight=2)]
    assert chosen(nodes) == "b"
    assert chosen(nodes, last="a") == "a"
    assert chosen(nodes, b=5) == "c", "what this runner has just sent counts before the node says so"
    assert chosen([node("a", "suspect"), node("b", inflight=9)], last="a") == "b"
    equal = [node(name) for name in "abcd"]
    assert {chosen(equal, rollout=f"r{n}") for n in range(50)} == set("abcd")


def test_only_ready_nodes_of_the_model_and_the_pinned_version_are_chosen() -> None:
    assert chosen([node("a", "stale")]) is None
    assert chosen([node("a")], model="other") is None
    assert chosen([node("a", version=2)], pinned=1) is None
    assert chosen([node("a", version=2), node("b", version=1)], pinned=1) == "b"


def test_a_version_held_beside_the_newest_is_found() -> None:
    beside = node("c", version=3, inflight=9, versions=[1, 2, 3])
    assert chosen([node("a", version=3), node("b"), beside], pinned=2) == "c"
    assert chosen([node("a", version=3), beside], last="a", preferred=2) == "c", "before the node that answered last"
    assert chosen([node("a", version=3), beside], last="c", preferred=2) == "c"
    assert chosen([node("a", version=3), beside], last="a", preferred=0) == "a", "nobody has it: as without a wish"
    assert chosen([node("a", version=3), beside], pinned=3, preferred=2) == "a"
    assert chosen([node("a", version=3, versions="what?")], pinned=2) is None
    assert chosen([node("a", version=3, versions=[1, 2])], pinned=3) is None, "its newest was revoked"


def telemetry() -> ExportTraceServiceRequest:
    inner = ProtoSpan(
        trace_id=b"\1" * 16,
        span_id=b"\2" * 8,
        name="tool",
        start_time_unix_nano=5,
        end_time_unix_nano=9,
        attributes=[KeyValue(key="lightningbus.reward", value=AnyValue(double_value=0.5))],
    )
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[inner])])])


def test_telemetry_in_protobuf_and_json_becomes_part_of_the_rollouts_trace() -> None:
    as_json = {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "01" * 16,
                                "spanId": "02" * 8,
                                "name": "tool",
                                "startTimeUnixNano": "5",
                                "endTimeUnixNano": "9",
                                "attributes": [{"key": "lightningbus.reward", "value": {"doubleValue": 0.5}}],
                                "somethingNew": 1,
                            }
                        ]
                    }
                ]
            }
        ]
    }
    from_protobuf = otlp.read("traces", telemetry().SerializeToString(), "application/x-protobuf", "t.0", "root")
    assert otlp.read("traces", json.dumps(as_json).encode(), "application/json", "t.0", "root") == [
        replace(one, attributes={**one.attributes, "lightningbus.otlp.unknown.somethingNew": "1"})
        for one in from_protobuf
    ]
    (found,) = from_protobuf
    assert (found.trace_id, found.span_id, found.parent_span_id) == (identity.trace_id("t.0"), "02" * 8, "root")
    assert found.attributes["lightningbus.reward"] == 0.5


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"\xff\xff", "application/x-protobuf"), (b"[1]", "application/json"), (b"{", "application/json")],
)
def test_what_is_no_telemetry_is_refused_in_one_sentence(body: bytes, kind: str) -> None:
    with pytest.raises(otlp.BadTelemetry, match="not an OTLP request"):
        otlp.read("traces", body, kind, "t.0", "root")


def chunk(version: int | None, ids: list[int], text: str, **more: Any) -> dict[str, Any]:
    said = {"index": 0, "delta": {"content": text}, "token_ids": ids, "finish_reason": None, **more}
    said["logprobs"] = {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}
    whole: dict[str, Any] = {"id": "c", "created": 1, "model": "policy", "choices": [said]}
    return whole if version is None else {"weight_version": version, **whole}


def collected(*chunks: dict[str, Any], pinned: int | None = None, **body: Any) -> StreamAccumulator:
    call = ChatRequest.parse({"model": "policy:writer", "messages": [], **body}, chat=True)
    completion = StreamAccumulator(call, {"temperature": 0.5}, pinned)
    for one in chunks:
        completion._feed_chunk(one)
    return completion


FIRST = {"prompt_token_ids": [1, 2, 3]}


def test_a_stream_over_a_swap_keeps_the_version_of_every_token() -> None:
    chunks = [FIRST | chunk(4, [7], "a"), chunk(4, [8, 9], "b"), chunk(5, [10], "c", finish_reason="stop")]
    (part,) = collected(*chunks).sampled_choices()
    assert array("I", part.response_ids).tolist() == [7, 8, 9, 10]
    assert array("I", part.prompt_ids).tolist() == [1, 2, 3]
    assert array("f", part.logprobs).tolist() == [-0.5] * 4
    assert part.versions == (VersionSpan(version=4, start=0, end=3), VersionSpan(version=5, start=3, end=4))
    assert json.loads(part.response) == {"role": "assistant", "content": "abc"}
    assert part.sampling == {"temperature": 0.5}


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
    with pytest.raises(InvalidEngineOutput, match=reason):
        list(collected(*chunks).sampled_choices())


def test_a_pinned_answer_of_another_version_is_not_used() -> None:
    mixed = (FIRST | chunk(4, [7], "a"), chunk(5, [8], "b", finish_reason="stop"))
    assert len(list(collected(*mixed).sampled_choices())) == 1
    with pytest.raises(InvalidEngineOutput, match="another version than 4"):
        list(collected(*mixed, pinned=4).sampled_choices())


def test_the_agent_sees_nothing_it_did_not_ask_for() -> None:
    completion = collected(FIRST | chunk(4, [7], "a", finish_reason="stop"))
    shown = completion.to_agent_chunk(FIRST | chunk(4, [7], "a"))
    assert shown is not None
    assert set(shown) == {"id", "created", "model", "choices"}
    assert set(shown["choices"][0]) == {"index", "delta", "finish_reason"}
    whole = completion.to_response()
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "a"}
    assert whole["choices"][0]["logprobs"] is None
    asked = collected(FIRST | chunk(4, [7], "a", finish_reason="stop"), logprobs=True, return_token_ids=True)
    assert asked.to_response()["choices"][0]["token_ids"] == [7]
    assert asked.to_response()["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5


def test_streamed_tool_calls_are_put_together() -> None:
    pieces = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ]
    chunks = [FIRST | chunk(1, [7], ""), chunk(1, [8], "", finish_reason="tool_calls")]
    for one, piece in zip(chunks, pieces, strict=True):
        one["choices"][0]["delta"] = {"tool_calls": [piece]}
    message = collected(*chunks).to_response()["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]


@pytest.mark.parametrize("body", [[], {"messages": []}, {"model": "policy"}, {"model": "policy", "messages": "hello"}])
def test_a_request_that_is_none_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match="the request"):
        ChatRequest.parse(body, chat=True)


def test_long_attempts_are_cut_into_batches_and_the_last_one_ends_them() -> None:
    attempt = AttemptRecorder(task(), 2, "runner")
    for n in range(9):
        attempt.add(Span(trace_id="t", span_id=f"{n}", name="x", start_ns=1, end_ns=2, attributes={"a": "a" * 300_000}))
    attempt.finish("ok", 1.0, "", "1")
    batches = list(attempt.outbox)
    assert len(batches) > 1
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    assert [batch.end is not None for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert sum(len(batch.spans) for batch in batches) == 10
    assert max(len(encode(batch)) for batch in batches) < 1_500_000
