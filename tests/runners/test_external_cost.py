"""What calls past our nodes cost: each is priced once, those of our own models never, and none is free by silence."""

from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.protocol.answers.choice import ExternalAnswer, SampledChoice
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.settings import ModelPrice
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span, Usage
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import ScriptedEngine, ended, running, task

PRICES = {"gpt-4o-mini*": ModelPrice(input=0.5, output=2), "gpt-*": ModelPrice(input=100, output=100)}


def span(number: int, *, parent: str = "f" * 16, status: Any = "ok", name: str = "chat", **fields: Any) -> Span:
    """A span of an agent; `model`, `tokens` and `id` stand for OpenTelemetry's attributes."""
    known: dict[str, Any] = {attributes.OPERATION: fields.pop("operation", "chat")}
    if "model" in fields:
        known[attributes.REQUEST_MODEL] = fields.pop("model")
    if "id" in fields:
        known[attributes.RESPONSE_ID] = fields.pop("id")
    if "tokens" in fields:
        known[attributes.INPUT_TOKENS], known[attributes.OUTPUT_TOKENS] = fields.pop("tokens")
    return Span(
        trace_id="a" * 32, span_id=f"{number:016x}", parent_span_id=parent, name=name, kind="client", start_ns=1,
        end_ns=2, status=status, scope="agent", attributes=known | fields.pop("attributes", {}),
    )  # fmt: skip


def recorded(*spans: Span, prices: dict[str, ModelPrice] = PRICES) -> tuple[Usage, list[dict[str, Any]]]:
    """The usage of an attempt with these spans of its agent, and their marks."""
    recorder = AttemptRecorder(task(), 1, "runner", model_prices=prices)
    for each in spans:
        assert recorder.add(each) is None
    recorder.finish("ok", 1.0, "", "null")
    batches = list(recorder.outbox)
    (end,) = [batch.end for batch in batches if batch.end is not None]
    kept = [each for batch in batches for each in batch.spans if each.scope == "agent"]
    marks = [
        {key.rpartition(".")[2]: value for key, value in each.attributes.items() if ".external." in key}
        for each in kept
    ]
    return end.usage, marks


def test_a_call_is_priced_by_the_first_pattern_that_fits() -> None:
    usage, marks = recorded(
        span(1, model="gpt-4o-mini-2024", tokens=(1_000_000, 500_000)), span(2, model="gpt-4o", tokens=(10, 0))
    )
    assert marks == [{"cost": 1.5}, {"cost": 0.001}]
    assert (usage.num_external_calls, usage.num_unpriced_calls, usage.external_cost) == (2, 0, pytest.approx(1.501))
    assert usage.num_calls == 0, "which counts the calls of the gateway"


def test_a_call_without_price_or_tokens_is_unpriced_and_not_free() -> None:
    usage, marks = recorded(span(1, model="claude-x", tokens=(5, 5)), span(2, model="gpt-4o"))
    assert marks == [{"unpriced": True}, {"unpriced": True}]
    assert (usage.num_external_calls, usage.num_unpriced_calls, usage.external_cost) == (2, 2, 0.0)


@pytest.mark.parametrize(
    "names",
    [
        ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"),
        ("llm.token_count.prompt", "llm.token_count.completion"),
    ],
)
def test_older_names_of_tokens_are_read_too(names: tuple[str, str]) -> None:
    usage, _ = recorded(span(1, model="gpt-4o", attributes={names[0]: "10", names[1]: 10}))
    assert usage.external_cost == pytest.approx(0.002)


@pytest.mark.parametrize("tokens", [("many", None), (-5, "-1"), (float("nan"), float("inf")), (True, [1]), (2**60, {})])
def test_a_count_that_is_none_is_unpriced(tokens: Any) -> None:
    usage, marks = recorded(span(1, model="gpt-4o", tokens=tokens))
    assert marks == [{"unpriced": True}] and usage.external_cost == 0.0


def test_what_several_instrumentations_record_is_one_call() -> None:
    usage, _ = recorded(
        span(1, model="gpt-4o", tokens=(10, 0), id="chatcmpl-abc", parent=f"{3:016x}"),
        span(2, model="gpt-4o", tokens=(10, 0), id="chatcmpl-abc"),
        span(3, model="gpt-4o", tokens=(10, 0)),
        span(4, model="gpt-4o", tokens=(10, 0), operation="invoke_agent"),
    )
    assert (usage.num_external_calls, usage.external_cost) == (1, pytest.approx(0.001))


def test_a_call_that_failed_costs_nothing() -> None:
    usage, _ = recorded(span(1, model="gpt-4o", status="error"))
    assert usage.num_external_calls == 0


def test_marks_that_an_agent_makes_itself_do_not_count() -> None:
    usage, marks = recorded(
        span(1, operation="execute_tool", attributes={attributes.EXTERNAL_COST: -5.0}),
        span(2, model="gpt-4o", tokens=(10, 0), attributes={attributes.EXTERNAL_COST: -5.0}),
    )
    assert marks == [{}, {"cost": 0.001}] and usage.external_cost == pytest.approx(0.001)


def sampled(response_id: str, external: ExternalAnswer | None = None) -> SampledChoice:
    """A call of the gateway: of a node, or of an endpoint."""
    return SampledChoice(
        model="policy", response_id=response_id, prompt_ids=b"", response_ids=b"", logprobs=b"", token_texts=(),
        weight_versions=(), finish_reason="stop", sampling={}, response="{}", external=external,
    )  # fmt: skip


def test_what_a_node_answers_costs_nothing_whoever_records_it() -> None:
    recorder = AttemptRecorder(task(), 1, "runner", model_prices={"*": ModelPrice(input=1e6, output=1e6)})
    around = f"{9:016x}"
    recorder.add_call(sampled("chatcmpl-1"), node="n", role="", request="{}", started_ns=1, ended_ns=2, parent=around)
    for each in (
        span(1, model="gpt-4o", tokens=(5, 5), id="resp_1"),
        span(2, model="policy", tokens=(5, 5)),
        span(9, model="gpt-4o", tokens=(5, 5)),
        span(3),
    ):
        recorder.add(each)
    recorder.finish("ok", 1.0, "", "null")
    (end,) = [batch.end for batch in recorder.outbox if batch.end is not None]
    assert (end.usage.num_calls, end.usage.num_external_calls, end.usage.external_cost) == (1, 0, 0.0)


def test_what_an_endpoint_answers_through_the_gateway_is_priced_once() -> None:
    recorder = AttemptRecorder(task(), 1, "runner", model_prices=PRICES)
    for counts in ((1_000_000, 500_000), (None, None)):  # two choices of one answer
        answer = ExternalAnswer("api.example.com", "gpt-4o-mini-2024", *counts)
        recorder.add_call(sampled("chatcmpl-7", answer), node="", role="", request="{}", started_ns=1, ended_ns=2)
    recorder.add(span(1, model="gpt-4o-mini", tokens=(1_000_000, 500_000), id="chatcmpl-7"))
    recorder.finish("ok", 1.0, "", "null")
    (end,) = [batch.end for batch in recorder.outbox if batch.end is not None]
    assert (end.usage.num_external_calls, end.usage.num_unpriced_calls, end.usage.external_cost) == (1, 0, 1.5)


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
