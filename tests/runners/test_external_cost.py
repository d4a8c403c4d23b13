"""What calls past our nodes cost: each is priced once, those of our own models never, and none is free by silence."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.bus.client import Bus
from lightningbus.common.token_price import TokenPrice
from lightningbus.runners.protocol.answers.choice import ExternalAnswer, SampledChoice
from lightningbus.runners.recording import attempt, external_cost
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import MAX_EXTERNAL_MODELS, Span, Usage
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import ScriptedEngine, ended, running, task

PRICES = {"gpt-4o-mini*": TokenPrice(input=0.5, output=2), "gpt-*": TokenPrice(input=100, output=100)}


def span(number: int, *, parent: str = "f" * 16, status: Any = "ok", name: str = "chat", **fields: Any) -> Span:
    """A span of an agent; `model`, `tokens` and `id` stand for OpenTelemetry's attributes."""
    known: dict[str, Any] = {attributes.OPERATION: fields.pop("operation", "chat")}
    if "model" in fields:
        known[attributes.REQUEST_MODEL] = fields.pop("model")
    if "id" in fields:
        known[attributes.RESPONSE_ID] = fields.pop("id")
    if "tokens" in fields:
        known[attributes.INPUT_TOKENS], known[attributes.OUTPUT_TOKENS] = fields.pop("tokens")
    times = {"start_ns": fields.pop("start_ns", 1), "end_ns": fields.pop("end_ns", 2)}
    return Span(
        trace_id="a" * 32, span_id=f"{number:016x}", parent_span_id=parent, name=name, kind="client", status=status,
        scope="agent", attributes=known | fields.pop("attributes", {}), **times,
    )  # fmt: skip


ENDPOINT = ExternalAnswer("api.example.com", "gpt-4o-mini-2024", 1_000_000, 500_000)
ID = "chatcmpl-0123456789abcdef"


def sampled(response_id: str, external: ExternalAnswer | None = None) -> SampledChoice:
    """A call of the gateway: of a node, or of an endpoint."""
    return SampledChoice(
        model="policy" if external is None else "judge", response_id=response_id, prompt_ids=b"", response_ids=b"",
        logprobs=b"", token_texts=(), weight_versions=(), finish_reason="stop", sampling={}, response="{}",
        external=external,
    )  # fmt: skip


def openinference(number: int, response_id: str, **fields: Any) -> Span:
    """A span of OpenInference: the id of the response is in its output alone."""
    output = json.dumps({"choices": [{"message": {"content": "a sufficiently long answer"}}], "id": response_id})
    return span(number, operation="chat", attributes={attributes.OUTPUT: output, "llm.model_name": "gpt-4o"}, **fields)


def below(number: int) -> dict[str, str]:
    return {"parent": f"{number:016x}"}


def recorded(*spans: Span | SampledChoice, prices: dict[str, TokenPrice] = PRICES, parent: str = "") -> Usage:
    """The usage of an attempt with these spans of its agent, and calls of the gateway below ``parent``."""
    recorder = AttemptRecorder(task(), 1, "runner", model_prices=prices)
    for each in spans:
        if isinstance(each, Span):
            recorder.add(each)
        else:
            recorder.add_call(each, node="n", role="", request="{}", started_ns=10, ended_ns=20, parent=parent)
    recorder.finish("ok", 1.0, "", "null")
    for batch in recorder.outbox:
        for kept in batch.spans:
            assert kept.scope != "agent" or kept in spans, "a span of an agent is stored unchanged"
    (end,) = [batch.end for batch in recorder.outbox if batch.end is not None]
    return end.usage


def calls_and_cost(usage: Usage) -> tuple[int, int, Any]:
    return usage.num_external_calls, usage.num_unpriced_calls, pytest.approx(usage.external_cost)


def test_a_call_is_priced_by_the_first_pattern_that_fits() -> None:
    usage = recorded(
        span(1, model="gpt-4o-mini-2024", tokens=(1_000_000, 500_000)), span(2, model="gpt-4o", tokens=(10, 0))
    )
    assert {model: each.cost for model, each in usage.external_models.items()} == {
        "gpt-4o-mini-2024": 1.5,
        "gpt-4o": 0.001,
    }
    assert calls_and_cost(usage) == (2, 0, 1.501)
    assert usage.num_calls == 0, "which counts the calls of the gateway"


def test_a_call_without_price_or_tokens_is_unpriced_and_not_free() -> None:
    assert calls_and_cost(recorded(span(1, model="claude-x", tokens=(5, 5)), span(2, model="gpt-4o"))) == (2, 2, 0)


@pytest.mark.parametrize(
    "names",
    [
        ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"),
        ("llm.token_count.prompt", "llm.token_count.completion"),
    ],
)
def test_older_names_of_tokens_are_read_too(names: tuple[str, str]) -> None:
    usage = recorded(
        span(1, model="gpt-4o", attributes={names[0]: "10", names[1]: 10, attributes.INPUT_TOKENS: "none"})
    )
    assert usage.external_cost == pytest.approx(0.002)
    assert (usage.external_models["gpt-4o"].prompt_tokens, usage.external_models["gpt-4o"].response_tokens) == (10, 10)


@pytest.mark.parametrize(
    "tokens",
    [("many", None), (-5, "-1"), (float("nan"), float("inf")), (True, [1]), (2**40 - 1, 0), (2**60, {}), (6e6, 6e6)],
)
def test_a_count_that_no_call_can_have_is_unpriced(tokens: Any) -> None:
    usage = recorded(span(1, model="gpt-4o", tokens=tokens))
    assert calls_and_cost(usage) == (1, 1, 0) and usage.external_models["gpt-4o"].prompt_tokens == 0


def test_a_call_that_failed_costs_nothing_and_hides_none() -> None:
    assert recorded(span(1, model="gpt-4o", status="error")).num_external_calls == 0
    usage = recorded(
        span(1, model="gpt-4o", tokens=(10, 0)),
        span(2, model="gpt-4o", status="error", **below(1)),
        span(3, model="gpt-4o", tokens=(10, 0), id="chatcmpl-b", **below(1)),
    )
    assert calls_and_cost(usage) == (1, 0, 0.001)


def test_attributes_of_an_agent_set_no_cost() -> None:
    usage = recorded(span(1, operation="execute_tool", attributes={"lightningbus.external.cost": -5.0}))
    assert calls_and_cost(usage) == (0, 0, 0)


def test_a_span_around_an_instrumented_call_of_an_endpoint_adds_none() -> None:
    child = span(1, model="gpt-4o-mini", tokens=(1_000_000, 500_000), id=ID, **below(2))
    around = span(2, model="gpt-4o-mini", tokens=(1_000_000, 500_000))
    assert calls_and_cost(recorded(sampled(ID, ENDPOINT), child, around)) == (1, 0, 1.5)
    assert calls_and_cost(recorded(around, sampled(ID, ENDPOINT), child)) == (1, 0, 1.5)


def test_the_id_in_the_output_of_a_span_matches_a_call_of_an_endpoint() -> None:
    call = sampled(ID, ENDPOINT)
    assert calls_and_cost(recorded(call, openinference(1, ID, tokens=(1, 1)))) == (1, 0, 1.5)
    assert calls_and_cost(recorded(openinference(1, ID.replace("chatcmpl-", "")), call)) == (1, 0, 1.5)


def test_an_endpoint_is_matched_by_time_where_there_is_no_id() -> None:
    call, times = sampled(ID, ENDPOINT), {"start_ns": 5, "end_ns": 25}
    assert calls_and_cost(recorded(call, span(1, model="judge", tokens=(1, 1), **times))) == (1, 0, 1.5)
    assert recorded(call, span(1, model="judge", tokens=(1, 1), start_ns=15, end_ns=25)).num_external_calls == 2
    assert recorded(call, span(1, model="gpt-4o", tokens=(1, 1), **times)).num_external_calls == 2


def test_two_choices_of_an_endpoint_are_one_call() -> None:
    second = ExternalAnswer("api.example.com", "gpt-4o-mini-2024")
    assert calls_and_cost(recorded(sampled("chatcmpl-7", ENDPOINT), sampled("chatcmpl-7", second))) == (1, 0, 1.5)


def test_what_a_node_answers_costs_nothing_whoever_records_it() -> None:
    spans = (
        span(1, model="gpt-4o", tokens=(5, 5), id="resp_1"),
        span(2, model="policy", tokens=(5, 5)),
        span(9, model="gpt-4o", tokens=(5, 5)),
        span(3, start_ns=5, end_ns=25),
    )
    prices = {"*": TokenPrice(input=1e6, output=1e6)}
    usage = recorded(sampled("chatcmpl-1"), *spans, prices=prices, parent=f"{9:016x}")
    assert (usage.num_calls, usage.num_external_calls, usage.external_cost) == (1, 0, 0.0)


def test_what_a_node_answers_under_an_alias_costs_nothing() -> None:
    child, around = span(1, model="gpt-4o-mini", tokens=(5, 5), id=ID, **below(2)), span(2, model="gpt-4o-mini")
    assert recorded(sampled(ID), child, around).num_external_calls == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_nested_spans_without_ids_are_one_call(order: Sequence[int]) -> None:
    spans = [span(number, model="gpt-4o", tokens=(10, 0), **below(number + 1)) for number in (1, 2, 3)]
    assert calls_and_cost(recorded(*(spans[index] for index in order))) == (1, 0, 0.001)


def test_a_tool_or_an_agent_between_them_parts_calls() -> None:
    for operation in ("execute_tool", "invoke_agent"):
        spans = [span(number, model="gpt-4o", tokens=(10, 0), **below(number + 1)) for number in (1, 3)]
        assert recorded(*spans, span(2, operation=operation, **below(3))).num_external_calls == 2


@st.composite
def spans_of_one_call(draw: st.DrawFn) -> list[Span | SampledChoice]:
    """Model spans of one call: all have its id, or are below or above another of them; in any order."""
    source = draw(st.sampled_from(["agent", "endpoint"]))
    num_trees, number, spans = draw(st.integers(1, 3)), 0, list[Span | SampledChoice]()
    for _ in range(num_trees):
        size = draw(st.integers(1, 4))
        first, named = number + 1, draw(st.integers(0, size - 1))
        for index in range(size):
            number += 1
            has_id = (num_trees > 1 or source == "endpoint") and index == named
            above = below(draw(st.integers(first, number - 1))) if index else {}
            form = draw(st.sampled_from(["id", "output"])) if has_id or draw(st.booleans()) else ""
            prefix = draw(st.sampled_from(["chatcmpl-", "resp_", "msg_"]))
            response_id = prefix + ID.removeprefix("chatcmpl-")
            if form == "output":
                spans.append(openinference(number, response_id, tokens=(1_000_000, 500_000), **above))
            else:
                known = {"id": response_id} if form else {}
                spans.append(span(number, model="gpt-4o-mini", tokens=(1_000_000, 500_000), **known, **above))
    if source == "endpoint":
        spans.append(sampled(ID, ENDPOINT))
    return draw(st.permutations(spans))


@given(spans_of_one_call())
def test_spans_of_one_call_count_once_in_any_order_and_nesting(spans: list[Span | SampledChoice]) -> None:
    prices = {"*": TokenPrice(input=0.5, output=2)}
    assert calls_and_cost(recorded(*spans, prices=prices)) == (1, 0, 1.5)


@given(st.permutations([(number, name) for number, name in enumerate("aabbbc", 1)]))
def test_each_id_is_a_call(spans: list[tuple[int, str]]) -> None:
    usage = recorded(*(span(number, model="gpt-4o", tokens=(10, 0), id=f"chatcmpl-{name}") for number, name in spans))
    assert calls_and_cost(usage) == (3, 0, 0.003)


def test_spans_that_are_refused_are_calls_without_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "MAX_ATTEMPT_SPANS", 2)
    monkeypatch.setattr(external_cost, "MAX_MODEL_SPANS", 4)
    spans = [span(number, model="gpt-4o", tokens=(10, 0), id=f"chatcmpl-{number}") for number in range(1, 8)]
    again = span(9, model="gpt-4o", tokens=(10, 0), id="chatcmpl-1")
    usage = recorded(*spans[:2], again, *spans[2:])
    assert calls_and_cost(usage) == (7, 5, 0.002)


def test_models_beyond_the_most_that_are_listed_are_together() -> None:
    names = [f"gpt-{number}" for number in range(2 * MAX_EXTERNAL_MODELS)]
    usage = recorded(*(span(number, model=name, tokens=(10, 0)) for number, name in enumerate(names, 1)))
    assert len(usage.external_models) <= MAX_EXTERNAL_MODELS and usage.num_external_calls == len(names)


async def test_a_runner_prices_what_its_agent_records(bus: Bus, engine: ScriptedEngine) -> None:
    """The agent's own model calls go to a node: its span of a call to another model is the only one with a price."""
    prices = {"gpt-4o*": {"input": 100, "output": 100}}
    async with running(bus, entrypoint="traced:calls_elsewhere", model_prices=prices):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "ok"
    usage = batch.end.usage
    assert (usage.num_calls, usage.num_external_calls, usage.num_unpriced_calls) == (1, 1, 0)
    assert usage.external_cost == pytest.approx(0.003)
