"""The kind, the name and the payload of a span, by the attribute names of the instrumentation that made it. Pure.

docs/bring-your-agent.md lists the instrumentations, and the version each was tested with. Attribute values are typed as
in OTLP, or all text as the store returns them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.rewards import reward_dimensions

SpanKind = Literal[
    "agent",
    "chain",
    "model",
    "tool",
    "retriever",
    "reward",
    "annotation",
    "message",
    "object",
    "exception",
    "log",
    "other",
]
"""A chain orders other spans: a workflow, a task, a node of a graph, an operation. A log record may repeat all
attributes of a model call's span, and is still a log."""

Attributes = Mapping[str, Any]

MAX_PREVIEW_CHARS = 300
"""Length of a preview."""

_KINDS: dict[str, dict[str, SpanKind]] = {
    "openinference.span.kind": {
        "AGENT": "agent",
        "CHAIN": "chain",
        "LLM": "model",
        "TOOL": "tool",
        "RETRIEVER": "retriever",
    },
    "langsmith.span.kind": {"chain": "chain", "llm": "model", "tool": "tool", "retriever": "retriever"},
    "traceloop.span.kind": {"agent": "agent", "workflow": "chain", "task": "chain", "tool": "tool"},
    "agentops.span.kind": {
        "agent": "agent",
        "workflow": "chain",
        "task": "chain",
        "operation": "chain",
        "chain": "chain",
        "llm": "model",
        "tool": "tool",
    },
    "langfuse.observation.type": {
        "agent": "agent",
        "chain": "chain",
        "generation": "model",
        "tool": "tool",
        "retriever": "retriever",
    },
    "ai.operationId": {
        "ai.generateText": "chain",
        "ai.streamText": "chain",
        "ai.generateObject": "chain",
        "ai.streamObject": "chain",
        "ai.generateText.doGenerate": "model",
        "ai.streamText.doStream": "model",
        "ai.generateObject.doGenerate": "model",
        "ai.streamObject.doStream": "model",
        "ai.toolCall": "tool",
    },
    attributes.OPERATION: {
        "invoke_agent": "agent",
        "create_agent": "agent",
        "invoke_workflow": "chain",
        "execute_task": "chain",
        "plan": "chain",
        "chat": "model",
        "text_completion": "model",
        "generate_content": "model",
        "execute_tool": "tool",
        "retrieval": "retriever",
    },
}
"""Kinds by attribute; the first attribute that a span has decides. LangSmith sets ``chat`` on a prompt too, OpenLLMetry
``invoke_agent`` on a workflow, so their own attributes come first."""

_SPAN_NAMES: dict[str, SpanKind] = {
    "agentlightning.annotation": "annotation",
    "agentlightning.message": "message",
    "agentlightning.object": "object",
    "agentlightning.exception": "exception",
    "agentlightning.operation": "chain",
    "agentlightning.reward": "reward",
}
"""Agent Lightning's spans are identified by name (its `semconv.py`, 0.3)."""

_TOOL_NAMES = (
    attributes.TOOL_NAME,
    "tool.name",
    "tool_name",
    "traceloop.entity.name",
    "langsmith.trace.name",
    "ai.toolCall.name",
)
_ENTITY_NAMES = (
    attributes.AGENT_NAME,
    "agent.name",
    attributes.WORKFLOW_NAME,
    "gen_ai.task.name",
    "traceloop.entity.name",
    "agentlightning.operation.name",
    "ai.telemetry.functionId",
)
_NAMED = "langfuse.observation.type"
"""Attribute of spans whose own name is that of the tool or agent."""
_INPUTS = (
    attributes.TOOL_ARGUMENTS,
    "gen_ai.input.messages",
    attributes.INPUT,
    "traceloop.entity.input",
    "gen_ai.prompt",
    "agentlightning.operation.input",
    "langfuse.observation.input",
    "ai.toolCall.args",
    "ai.prompt.messages",
    "ai.prompt",
)
_OUTPUTS = (
    attributes.TOOL_RESULT,
    "gen_ai.output.messages",
    attributes.OUTPUT,
    "traceloop.entity.output",
    "gen_ai.completion",
    "agentlightning.operation.output",
    "langfuse.observation.output",
    "ai.toolCall.result",
    "ai.response.text",
)
_BOOKKEEPING = ("lightningbus.", "otel.", attributes.AGL_REWARD_PREFIX, "agentlightning.link.")
_PAYLOADS = (
    "agentlightning.message.body",
    "agentlightning.object.json",
    "agentlightning.object.literal",
    "exception.message",
)


def kind_of(name: str, span_attributes: Attributes) -> SpanKind:
    """Classify a span by its name and attributes."""
    if attributes.LOG_BODY in span_attributes:
        return "log"
    for attribute, kinds in _KINDS.items():
        if attribute in span_attributes:
            return kinds.get(str(span_attributes[attribute]), "other")
    if next(reward_dimensions(span_attributes), None) is not None:
        return "reward"
    return _SPAN_NAMES.get(name, "other")


def entity_name(name: str, span_attributes: Attributes) -> str:
    """Return the name of the tool, the agent or the step of a chain; empty where the span has none."""
    names = {"tool": _TOOL_NAMES, "agent": _ENTITY_NAMES, "chain": _ENTITY_NAMES}
    named = names.get(kind_of(name, span_attributes), ())
    attribute = _first_present(span_attributes, named)
    if attribute:
        return str(span_attributes[attribute])
    return name if named and _NAMED in span_attributes else ""


def payload_keys(span_attributes: Attributes) -> dict[str, str]:
    """Find the attributes that hold ``input``, ``output``, and an agent's own event (``said``), where they exist."""
    keys = {
        "input": _first_present(span_attributes, _INPUTS),
        "output": _first_present(span_attributes, _OUTPUTS),
        "said": _first_present(span_attributes, _PAYLOADS),
    }
    return {label: key for label, key in keys.items() if key}


def summarize(name: str, span_attributes: Attributes) -> str:
    """Summarise in one line: input and output of a tool, or an agent's event: rewards, annotations, payloads."""
    kind, keys = kind_of(name, span_attributes), payload_keys(span_attributes)
    if kind == "tool":
        labels = [label for label in ("input", "output") if label in keys]
        return " → ".join(attributes.to_text(span_attributes[keys[label]])[:MAX_PREVIEW_CHARS] for label in labels)
    dimensions = reward_dimensions(span_attributes) if kind != "agent" else ()
    parts = [f"{dimension} {value}" for dimension, value in dimensions]
    if "said" in keys:
        parts.append(attributes.to_text(span_attributes[keys["said"]]))
    if kind in ("reward", "annotation"):
        others = sorted(key for key in span_attributes if not key.startswith(_BOOKKEEPING))
        parts += [f"{key.removeprefix('agentlightning.')}={attributes.to_text(span_attributes[key])}" for key in others]
    return ", ".join(parts)[:MAX_PREVIEW_CHARS]


def output_text(span_attributes: Attributes) -> str:
    """Join all outputs of a span as text; each instrumentation puts ids of responses and tool calls into it."""
    return "\n".join(attributes.to_text(span_attributes[name]) for name in _OUTPUTS if name in span_attributes)


def agl_links(span_attributes: Attributes) -> Iterator[tuple[str, str]]:
    """Yield Agent Lightning's links: an attribute of the linked span, or ``span_id``, and its value."""
    for index in range(len(span_attributes)):
        key = span_attributes.get(f"agentlightning.link.{index}.key_match")
        value = span_attributes.get(f"agentlightning.link.{index}.value_match")
        if key is None or value is None:
            return
        yield str(key), str(value)


def normalize_response_id(response_id: str) -> str:
    """Extract the common part of a response's ids: ``chatcmpl-1``, ``resp_1``, ``msg_1``; else empty."""
    return response_id.replace("_", "-").rpartition("-")[2]


def _first_present(span_attributes: Attributes, names: tuple[str, ...]) -> str:
    return next((name for name in names if span_attributes.get(name) not in (None, "")), "")
