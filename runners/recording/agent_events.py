"""Events that agents send by plain HTTP, as spans: in our own form, and in that of Agent Lightning 1.0. Pure."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.recording.rewards import parse_reward, parse_rewards
from lightningbus.schemas import ids
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span
from lightningbus.schemas.text import replace_surrogates

SCOPE, AGL_SCOPE = "lightningbus.events", "agentlightning.events"
MAX_NAME = 100
"""Characters of a name."""
EventKind = Literal["tool", "retriever", "agent", "chain"]
OPERATIONS: dict[EventKind, tuple[str, str]] = {
    "tool": ("execute_tool", attributes.TOOL_NAME),
    "retriever": ("retrieval", ""),
    "agent": ("invoke_agent", attributes.AGENT_NAME),
    "chain": ("invoke_workflow", attributes.WORKFLOW_NAME),
}
"""OpenTelemetry's operation of each kind, and the attribute of its name."""
OTHER_ERROR = "_OTHER"
"""OpenTelemetry's `error.type` where nothing more is known."""


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent's report in our own form: an action, a reward, or both."""

    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    kind: EventKind | None = None
    input: Any = None
    output: Any = None
    status: Literal["ok", "error"] = "ok"
    seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Duration up to now, in seconds."""
    tool_call_id: Annotated[str, Meta(max_length=200)] = ""
    """Tool call of a model's answer that the event executed."""
    reward: Any = None
    rewards: Any = None


@dataclass(frozen=True, slots=True)
class EventContext:
    """The attempt that an event belongs to; ``number`` tells it from the attempt's other events."""

    rollout_id: str
    root_span_id: str
    number: int
    started_ns: int
    now_ns: int

    @classmethod
    def of(cls, recorder: AttemptRecorder, now_ns: int) -> "EventContext":
        """Build the context of an event that happens now."""
        return cls(recorder.rollout, recorder.root_id, recorder.num_spans, recorder.started_ns, now_ns)

    def to_span(self, name: str, scope: str, fields: dict[str, Any], **more: Any) -> Span:
        """Build the event's span, which has no duration unless ``more`` has its start."""
        return Span(
            **{
                "trace_id": ids.trace_id(self.rollout_id),
                "span_id": ids.span_id(self.rollout_id, self.root_span_id, "event", self.number),
                "parent_span_id": self.root_span_id,
                "name": name,
                "kind": "internal",
                "start_ns": self.now_ns,
                "end_ns": self.now_ns,
                "scope": scope,
                "attributes": fields,
                **more,
            }
        )


def parse_event(data: bytes) -> Any:
    """Parse the JSON of an event; half a character, as of a text that was cut, becomes a question mark."""
    body = json.loads(data)
    text = json.dumps(body, ensure_ascii=False)
    encodable = replace_surrogates(text)
    return body if encodable == text else json.loads(encodable)


def convert_event(body: Any, context: EventContext) -> Span:
    """Convert an event in either form to a span; raise ValueError with a sentence for the agent."""
    if isinstance(body, dict) and "event_type" in body:
        return _convert_agl_event(body, context)
    if not isinstance(body, dict) or not body:
        raise ValueError('an event is an object, such as {"name": "search", "kind": "tool"} or {"reward": 0.2}')
    try:
        event = msgspec.convert(body, AgentEvent)
    except msgspec.ValidationError as error:
        raise ValueError(f"the event is malformed: {error}") from None
    rewards = {key: body[key] for key in ("reward", "rewards") if key in body}
    if not event.name and not rewards:
        raise ValueError("an event has a name, a reward or rewards")
    if event.kind is not None and not event.name:
        raise ValueError(f"an event of kind {event.kind!r} has a name")
    span_attributes = _attributes_of(event) | (_reward_attributes(rewards) if rewards else {})
    operation = OPERATIONS[event.kind][0] if event.kind else ""
    return context.to_span(
        " ".join(filter(None, (operation, event.name))) or "reward",
        SCOPE,
        span_attributes,
        start_ns=max(context.now_ns - round(event.seconds * 1e9), min(context.started_ns, context.now_ns)),
        status=event.status,
    )


def _attributes_of(event: AgentEvent) -> dict[str, Any]:
    operation, name = OPERATIONS[event.kind] if event.kind else ("", "")
    is_tool = event.kind == "tool"
    fields = {
        attributes.OPERATION: operation,
        name: event.name if name else "",
        attributes.TOOL_CALL: event.tool_call_id,
        attributes.TOOL_ARGUMENTS if is_tool else attributes.INPUT: event.input,
        attributes.TOOL_RESULT if is_tool else attributes.OUTPUT: event.output,
        attributes.ERROR_TYPE: OTHER_ERROR if event.status == "error" else "",
    }
    return {key: value for key, value in fields.items() if value not in ("", None)}


def _reward_attributes(fields: dict[str, Any]) -> dict[str, Any]:
    """Build the attributes of an event's rewards; raise `InvalidRewardError`."""
    rewards = parse_rewards(fields)
    named = {f"{attributes.NAMED_REWARD_PREFIX}{name}": value for name, value in rewards.by_name.items()}
    has_main = "reward" in fields and not isinstance(fields["reward"], dict)
    return ({attributes.REWARD: rewards.reward} if has_main else {}) | named


def _convert_agl_event(body: dict[str, Any], context: EventContext) -> Span:
    """Convert ``{"event_type": str, "data": {...}}``; a ``reward`` event has the reward in ``data["value"]``.

    Raises ValueError with a sentence, also for a number that cannot be a reward.
    """
    kind, data = body["event_type"], body.get("data", {})
    if not isinstance(kind, str) or not kind or not isinstance(data, dict):
        raise ValueError('an event has the form {"event_type": "reward", "data": {"value": 1.0}}')
    span_attributes: dict[str, Any] = {attributes.AGL_EVENT_DATA: json.dumps(data, ensure_ascii=False)}
    if kind == "reward":
        if "value" not in data:
            raise ValueError("the data of a reward has a value")
        if isinstance(data["value"], int | float):
            parse_reward(data["value"])
        span_attributes[attributes.AGL_REWARD] = data["value"]
    return context.to_span(f"agentlightning.{kind[:MAX_NAME]}", AGL_SCOPE, span_attributes)
