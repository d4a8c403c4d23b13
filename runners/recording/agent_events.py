"""Events as agents of Agent Lightning 1.0 send them, as spans. Pure."""

import json
from typing import Any

from schemas import ids
from schemas.semconv import attributes
from schemas.spans import Span

SCOPE = "agentlightning.events"


def convert_event(body: Any, rollout: str, root_span_id: str, number: int, now_ns: int) -> Span:
    """The span of ``{"event_type": str, "data": {...}}``; that of a ``reward`` has the reward in ``data["value"]``.

    ``number`` tells it from the rollout's other events. Raises ValueError with a sentence for the agent.
    """
    kind, data = (body.get("event_type"), body.get("data", {})) if isinstance(body, dict) else (None, None)
    if not isinstance(kind, str) or not kind or not isinstance(data, dict):
        raise ValueError('an event has the form {"event_type": "reward", "data": {"value": 1.0}}')
    span_attributes: dict[str, object] = {attributes.AGL_EVENT_DATA: json.dumps(data, ensure_ascii=False)}
    if kind == "reward":
        if "value" not in data:
            raise ValueError("the data of a reward has a value")
        span_attributes[attributes.AGL_REWARD] = data["value"]
    return Span(
        trace_id=ids.trace_id(rollout),
        span_id=ids.span_id(rollout, root_span_id, "event", number),
        parent_span_id=root_span_id,
        name=f"agentlightning.{kind[:100]}",
        kind="internal",
        start_ns=now_ns,
        end_ns=now_ns,
        status="unset",
        scope=SCOPE,
        attributes=span_attributes,
    )
