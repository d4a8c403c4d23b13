"""Attributes as instrumentations write them; each case names the instrumentation and its version."""

from typing import Any

import pytest

from lightningbus.schemas.semconv.call_attribution import CallIndex, RecordedCall
from lightningbus.schemas.semconv.rewards import reward_dimensions
from lightningbus.schemas.semconv.span_kinds import entity_name, kind_of, normalize_response_id, payload_keys, summarize

GEN_AI, OPENINFERENCE, TRACELOOP = "gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind"
LANGSMITH = "langsmith.span.kind"


@pytest.mark.parametrize(
    ("name", "span_attributes", "kind", "entity"),
    [
        # opentelemetry-instrumentation-genai-openai 1.3b0, -openai-v2 2.4b0; so do the openai dialects of OpenLLMetry
        ("chat policy", {GEN_AI: "chat", "gen_ai.response.id": "chatcmpl-1"}, "model", ""),
        # its log record, with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=EVENT_ONLY
        (
            "gen_ai.client.inference.operation.details",
            {GEN_AI: "chat", "gen_ai.response.id": "chatcmpl-1", "log.body": None},
            "log",
            "",
        ),
        # opentelemetry-instrumentation-genai-langchain 1.3b0
        ("invoke_agent adder", {GEN_AI: "invoke_agent", "gen_ai.agent.name": "adder"}, "agent", "adder"),
        (
            "execute_tool add",
            {GEN_AI: "execute_tool", "gen_ai.tool.name": "add", "gen_ai.agent.name": "adder"},
            "tool",
            "add",
        ),
        # opentelemetry-instrumentation-genai-openai-agents 1.3b0
        ("invoke_workflow W", {GEN_AI: "invoke_workflow", "gen_ai.workflow.name": "W"}, "chain", "W"),
        # opentelemetry-instrumentation-langchain 0.62.4 (OpenLLMetry)
        (
            "adder.workflow",
            {TRACELOOP: "workflow", GEN_AI: "invoke_agent", "gen_ai.agent.name": "adder"},
            "chain",
            "adder",
        ),
        (
            "execute_task model",
            {TRACELOOP: "task", GEN_AI: "execute_task", "gen_ai.task.name": "model"},
            "chain",
            "model",
        ),
        ("execute_tool add", {TRACELOOP: "tool", GEN_AI: "execute_tool", "gen_ai.tool.name": "add"}, "tool", "add"),
        ("ChatOpenAI.chat", {GEN_AI: "chat", "traceloop.workflow.name": "adder"}, "model", ""),
        # opentelemetry-instrumentation-openai-agents 0.62.4 (OpenLLMetry)
        ("adder.agent", {TRACELOOP: "agent", GEN_AI: "invoke_agent", "gen_ai.agent.name": "adder"}, "agent", "adder"),
        ("Agent Workflow", {TRACELOOP: "workflow", "traceloop.workflow.name": "Agent Workflow"}, "chain", ""),
        # openinference-instrumentation-langchain 0.1.80, -openai 0.1.66
        ("adder", {OPENINFERENCE: "CHAIN"}, "chain", ""),
        ("ChatOpenAI", {OPENINFERENCE: "LLM", "llm.model_name": "policy"}, "model", ""),
        ("add", {OPENINFERENCE: "TOOL", "tool.name": "add"}, "tool", "add"),
        ("retriever", {OPENINFERENCE: "RETRIEVER"}, "retriever", ""),
        ("embed", {OPENINFERENCE: "EMBEDDING"}, "other", ""),
        # openinference-instrumentation-openai-agents 2.6.0
        ("adder", {OPENINFERENCE: "AGENT", "agent.name": "adder"}, "agent", "adder"),
        # langsmith 0.15.0 with LANGSMITH_OTEL_ENABLED
        ("tools", {LANGSMITH: "chain", GEN_AI: "chain"}, "chain", ""),
        ("ChatOpenAI", {LANGSMITH: "llm", GEN_AI: "chat"}, "model", ""),
        ("prompt", {LANGSMITH: "prompt", GEN_AI: "chat"}, "other", ""),
        ("docs", {LANGSMITH: "retriever", GEN_AI: "embeddings"}, "retriever", ""),
        ("add", {LANGSMITH: "tool", GEN_AI: "execute_tool", "gen_ai.tool.name": "add"}, "tool", "add"),
        # agentlightning 0.3.0
        ("agentlightning.annotation", {"agentlightning.reward.0.value": 1.0}, "reward", ""),
        ("agentlightning.annotation", {"note.score": 3}, "annotation", ""),
        ("agentlightning.message", {}, "message", ""),
        ("agentlightning.object", {}, "object", ""),
        ("agentlightning.exception", {}, "exception", ""),
        ("agentlightning.operation", {"agentlightning.operation.name": "shout"}, "chain", "shout"),
        # ours, and anybody's
        ("judge", {"lightningbus.reward": 1.0}, "reward", ""),
        ("judge", {"lightningbus.rewards.checker": 1.0}, "reward", ""),
        ("POST", {"http.request.method": "POST"}, "other", ""),
    ],
)
def test_span_kind_and_name_in_every_dialect(
    name: str, span_attributes: dict[str, Any], kind: str, entity: str
) -> None:
    assert (kind_of(name, span_attributes), entity_name(name, span_attributes)) == (kind, entity)


@pytest.mark.parametrize(
    ("name", "span_attributes", "line"),
    [
        ("add", {OPENINFERENCE: "TOOL", "input.value": '{"a": 2}', "output.value": "5"}, '{"a": 2} → 5'),
        (
            "execute_tool add",
            {GEN_AI: "execute_tool", "gen_ai.tool.call.arguments": "1+1", "gen_ai.tool.call.result": "2"},
            "1+1 → 2",
        ),
        ("add", {LANGSMITH: "tool", "gen_ai.prompt": '{"a":2}', "gen_ai.completion": "{}"}, '{"a":2} → {}'),
        ("agentlightning.message", {"agentlightning.message.body": "hello"}, "hello"),
        ("agentlightning.object", {"agentlightning.object.json": '{"n": 1}'}, '{"n": 1}'),
        ("agentlightning.object", {"agentlightning.object.literal": "42", "agentlightning.object.type": "int"}, "42"),
        (
            "agentlightning.annotation",
            {"note.score": 3, "agentlightning.tag.0": "good", "lightningbus.otlp.trace_id": "00"},
            "tag.0=good, note.score=3",
        ),
        (
            "agentlightning.annotation",
            {
                "agentlightning.reward.0.name": "task",
                "agentlightning.reward.0.value": "1.0",
                "agentlightning.reward.1.name": "speed",
                "agentlightning.reward.1.value": "0.5",
                "agentlightning.link.0.key_match": "span_id",
            },
            "task 1.0, speed 0.5",
        ),
    ],
)
def test_summary_of_a_span(name: str, span_attributes: dict[str, Any], line: str) -> None:
    assert summarize(name, span_attributes) == line


def test_payload_keys() -> None:
    assert payload_keys({"input.value": "a", "output.value": "b"}) == {"input": "input.value", "output": "output.value"}
    assert payload_keys({"agentlightning.message.body": "x", "output.value": ""}) == {
        "said": "agentlightning.message.body"
    }


def test_rewards_have_dimensions_and_the_first_one_counts() -> None:
    span_attributes = {f"agentlightning.reward.{index}.value": value for index, value in enumerate((1.0, 0.5))}
    assert list(reward_dimensions({**span_attributes, "agentlightning.reward.0.name": "task"})) == [
        ("task", 1.0),
        ("1", 0.5),
    ]
    named = {"lightningbus.rewards.checker": 0.5, "lightningbus.reward": 2, "lightningbus.run": "r"}
    assert list(reward_dimensions(named)) == [("reward", 2), ("checker", 0.5)]
    assert summarize("judge", named) == "reward 2, checker 0.5"


def test_a_response_has_one_key_in_every_api() -> None:
    ids = ("chatcmpl-8d1f", "cmpl-8d1f", "resp_8d1f", "msg_8d1f")
    assert {normalize_response_id(id) for id in ids} == {"8d1f"} and normalize_response_id("") == ""


CALL_INDEX = CallIndex(
    [
        RecordedCall(
            "s0", {"gen_ai.response.id": "chatcmpl-aa"}, 10, '{"tool_calls": [{"id": "call_x"}, {"id": "call_y"}]}'
        ),
        RecordedCall("s1", {"gen_ai.response.id": "chatcmpl-bb"}, 20, "no JSON"),
    ]
)


@pytest.mark.parametrize(
    ("span_attributes", "index"),
    [
        ({"gen_ai.tool.call.id": "call_y"}, 0),
        ({"gen_ai.tool.call.id": "call_z"}, None),
        # openinference-instrumentation-langchain 0.1.80 has the id only in the tool's output
        ({OPENINFERENCE: "TOOL", "output.value": '{"type": "tool", "data": {"tool_call_id": "call_x"}}'}, 0),
        ({OPENINFERENCE: "CHAIN", "output.value": '{"type": "tool", "data": {"tool_call_id": "call_x"}}'}, None),
        # make_link_attributes of agentlightning 0.3.0
        ({f"agentlightning.link.0.{a}_match": b for a, b in (("key", "gen_ai.response.id"), ("value", "resp_bb"))}, 1),
        ({f"agentlightning.link.0.{a}_match": b for a, b in (("key", "span_id"), ("value", "s1"))}, 1),
        ({f"agentlightning.link.0.{a}_match": b for a, b in (("key", "gen_ai.response.id"), ("value", "zz"))}, None),
        ({}, None),
    ],
)
def test_the_call_that_a_span_references(span_attributes: dict[str, Any], index: int | None) -> None:
    assert CALL_INDEX.find_referenced(span_attributes) == index


def test_the_call_before_a_span() -> None:
    assert [CALL_INDEX.find_preceding(start_time) for start_time in (5, 10, 15, 25)] == [None, 0, 0, 1]
