"""Custom tools of OpenAI's APIs, which take free text, as functions of one text. Pure."""

import json
from typing import Any

from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.schemas.trajectory.chat_messages import parse_arguments

INPUT = "input"
"""Argument of a custom tool's function: the text that the tool takes."""


def custom_function(tool: dict[str, Any]) -> dict[str, Any]:
    """Describe a custom tool as a function of one text; its grammar is told, and not enforced."""
    text_format = tool.get("format") or {}
    grammar = text_format.get("grammar") or text_format  # Responses have its fields beside the type
    description = str(tool.get("description") or "")
    if text_format.get("type") == "grammar":
        rules = f"The input follows this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
        description = f"{description}\n\n{rules}".strip()
    properties = {INPUT: {"type": "string", "description": "the whole input of the tool, as free text"}}
    parameters = {"type": "object", "properties": properties, "required": [INPUT], "additionalProperties": False}
    return {"description": description, "parameters": parameters}


def custom_input(arguments: str) -> str:
    """Extract a custom tool's text from its function's arguments; other arguments are the text themselves."""
    parsed = parse_arguments(arguments)
    text = parsed.get(INPUT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str, call_id: Any, history: TokenHistory) -> str:
    """Return the arguments of a custom tool's call that was sent back, as they were sampled where it is known here."""
    sampled = history.sampled_arguments(call_id, text, custom_input)
    return sampled or json.dumps({INPUT: text}, ensure_ascii=False)
