"""Files of answers to imitate: chats, or tokens of calls."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightningbus.learner.batching.demonstrations import Demonstration, Demonstrations
from lightningbus.learner.call_rows import holds_calls, join_calls, load_calls
from lightningbus.learner.data_lines import build_each, read_lines
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.chat_content import read_content
from lightningbus.learner.transitions.chats import ChatTemplate, build_chat

MESSAGES = "messages"
THOUGHTS = ("reasoning", "reasoning_content")
"""Names of a thought; templates read the one or the other, and vLLM gives them both."""


def read_demonstrations(settings: LearnerSettings) -> Demonstrations:
    """Load what a learner imitates; raise ValueError as `load_demonstrations` and `Demonstrations`."""
    assert settings.supervised is not None
    return Demonstrations(load_demonstrations(settings.supervised.path, settings.model_path), settings)


def load_demonstrations(path: Path, model_path: Path) -> list[Demonstration]:
    """Load the demonstrations of a file; raise ValueError with a sentence that names file and line."""
    lines = list(read_lines(path))
    if holds_calls(lines):
        return join_calls(load_calls(path, lines, model_path))
    template = ChatTemplate.load(model_path)
    return build_each(path, lines, lambda number, line: Demonstration(f"chat-{number}", _load_chat(line, template)))


def read_messages(value: Any) -> list[dict[str, Any]] | None:
    """Return a list of messages without the fields that only others of a table have; None: it is not a list.

    Content is text, or several parts of text; raises ValueError for other content.
    """
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return None
    return [_read_message(number, message) for number, message in enumerate(value, 1)]


def _read_message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        content = read_content(message.get("content"))
    except ValueError as error:
        raise ValueError(f"message {number}: {error}") from error
    fields = {name: field for name, field in message.items() if field is not None} | {"content": content}
    if thought := next(filter(None, map(fields.get, THOUGHTS)), None):
        fields |= dict.fromkeys(THOUGHTS, thought)
    if isinstance(calls := fields.get("tool_calls"), list):
        fields["tool_calls"] = [_read_call(number, call) for call in calls]
    return fields


def _read_call(number: int, call: Any) -> Any:
    """Return a call of a tool with its arguments as an object, as vLLM gives them to a template; most print them."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _read_call(number, call["function"])}
    arguments = call.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"message {number}: the arguments of its call of {call.get('name')} are no JSON: {error}"
            ) from error
    return {**call, "arguments": arguments or {}}


def read_tools(line: Mapping[str, Any]) -> Any:
    """Return the tools of a line, which may be there as text; None: there are none."""
    tools = line.get("tools")
    try:
        tools = json.loads(tools) if isinstance(tools, str) and tools else tools
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its tools are no JSON: {error}") from error
    if tools and not (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        raise ValueError("its tools are no list of objects")
    return tools or None


def _load_chat(line: Mapping[str, Any], template: ChatTemplate) -> Any:
    messages = read_messages(line.get(MESSAGES))
    if messages is None:
        raise ValueError(f"it has no list of {MESSAGES}, each with role and content")
    return build_chat(messages, read_tools(line), template)
