"""Payloads that instrumentations put into events of a span, under the names that attributes have for them. Pure.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-events/. Strands has input and output of a tool in
events alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lightningbus.schemas.semconv import attributes

TOOL_EVENTS = {
    "gen_ai.tool.message": ("content", attributes.TOOL_ARGUMENTS),
    "gen_ai.choice": ("message", attributes.TOOL_RESULT),
}
"""Field of a tool's event, and name of the attribute that holds the same."""
DETAILS = "gen_ai.client.inference.operation.details"
"""Name of the event that holds attributes of a span as they are."""
MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")


def attributes_of_events(span_attributes: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes that a span's events stand for, those of the last event of a name."""
    values: dict[str, Any] = {}
    is_tool = span_attributes.get(attributes.OPERATION) == "execute_tool"
    for event in events:
        fields = event["attributes"]
        if is_tool and event["name"] in TOOL_EVENTS:
            field, name = TOOL_EVENTS[event["name"]]
            if field in fields:
                values[name] = fields[field]
        elif event["name"] == DETAILS:
            values |= {name: fields[name] for name in MESSAGES if name in fields}
    return values
