"""What a span is and says, by the names of whichever instrumentation made it. Pure.

docs/bring-your-agent.md says which instrumentations, and the version each was tried with. Attributes are as OTLP has
them or, as the store gives them back, all text.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from schemas.semconv import attributes
from schemas.semconv.rewards import dimensions

Kind = Literal[
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
"""A chain is whatever puts others in order: a workflow, a task, a graph's node, an operation. A log record may repeat
all that the span of a model call says, and is none."""

Said = Mapping[str, Any]

MOST_SHOWN = 300
"""Characters of anything that is shown shortly."""

_KINDS: dict[str, dict[str, Kind]] = {
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
"""By attribute, the first that a span has: LangSmith says ``chat`` of a prompt too, OpenLLMetry ``invoke_agent`` of a
workflow, so their own word goes first."""

_NAMES: dict[str, Kind] = {
    "agentlightning.annotation": "annotation",
    "agentlightning.message": "message",
    "agentlightning.object": "object",
    "agentlightning.exception": "exception",
    "agentlightning.operation": "chain",
    "agentlightning.reward": "reward",
}
"""Agent Lightning's spans are known by their names (its `semconv.py`, 0.3)."""

_TOOL_NAMES = (attributes.TOOL_NAME, "tool.name", "tool_name", "traceloop.entity.name", "langsmith.trace.name")
_OWN_NAMES = (
    attributes.AGENT_NAME,
    "agent.name",
    "gen_ai.workflow.name",
    "gen_ai.task.name",
    "traceloop.entity.name",
    "agentlightning.operation.name",
)
_INPUTS = (
    "gen_ai.tool.call.arguments",
    "gen_ai.input.messages",
    "input.value",
    "traceloop.entity.input",
    "gen_ai.prompt",
    "agentlightning.operation.input",
)
_OUTPUTS = (
    "gen_ai.tool.call.result",
    "gen_ai.output.messages",
    "output.value",
    "traceloop.entity.output",
    "gen_ai.completion",
    "agentlightning.operation.output",
)
_BOOKKEEPING = ("lightningbus.", "otel.", attributes.AGL_REWARDS, "agentlightning.link.")
_PAYLOADS = (
    "agentlightning.message.body",
    "agentlightning.object.json",
    "agentlightning.object.literal",
    "exception.message",
)


def kind_of(name: str, said: Said) -> Kind:
    """What a span is, by its name and its attributes."""
    if attributes.LOG_BODY in said:
        return "log"
    for attribute, kinds in _KINDS.items():
        if attribute in said:
            return kinds.get(str(said[attribute]), "other")
    if attributes.REWARD in said or attributes.AGL_REWARD in said:
        return "reward"
    return _NAMES.get(name, "other")


def own_name(name: str, said: Said) -> str:
    """What a tool, an agent or a step of a chain is called; empty where that is not said."""
    names = {"tool": _TOOL_NAMES, "agent": _OWN_NAMES, "chain": _OWN_NAMES}.get(kind_of(name, said), ())
    named = _first(said, names)
    return str(said[named]) if named else ""


def shown(said: Said) -> dict[str, str]:
    """Which attributes hold what went in, what came out, and what an agent emitted, where they do."""
    found = {"input": _first(said, _INPUTS), "output": _first(said, _OUTPUTS), "said": _first(said, _PAYLOADS)}
    return {label: name for label, name in found.items() if name}


def gist(name: str, said: Said) -> str:
    """Shortly what a tool was asked and answered, or what an agent emitted: rewards, annotations, payloads."""
    kind, where = kind_of(name, said), shown(said)
    if kind == "tool":
        parts = [attributes.as_text(said[where[part]])[:MOST_SHOWN] for part in ("input", "output") if part in where]
        return " → ".join(parts)
    parts = [f"{dimension} {value}" for dimension, value in dimensions(said)] if kind != "agent" else []
    if "said" in where:
        parts.append(attributes.as_text(said[where["said"]]))
    if kind in ("reward", "annotation"):
        more = sorted(key for key in said if not key.startswith(_BOOKKEEPING))
        parts += [f"{key.removeprefix('agentlightning.')}={attributes.as_text(said[key])}" for key in more]
    return ", ".join(parts)[:MOST_SHOWN]


def outputs(said: Said) -> str:
    """All that is said of what came out, as text: ids of answers and tool calls stand in it, each in its own way."""
    return "\n".join(attributes.as_text(said[name]) for name in _OUTPUTS if name in said)


def links(said: Said) -> Iterator[tuple[str, str]]:
    """Agent Lightning's links: an attribute of the span that is meant, or ``span_id``, and its value."""
    for place in range(len(said)):
        key, value = (said.get(f"agentlightning.link.{place}.{part}_match") for part in ("key", "value"))
        if key is None or value is None:
            return
        yield str(key), str(value)


def answer_key(response_id: str) -> str:
    """What ids of one answer have in common in every API, as ``chatcmpl-1``, ``resp_1`` and ``msg_1``; else empty."""
    return response_id.replace("_", "-").rpartition("-")[2]


def _first(said: Said, names: tuple[str, ...]) -> str:
    return next((name for name in names if said.get(name) not in (None, "")), "")
