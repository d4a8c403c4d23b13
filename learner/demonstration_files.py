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
    return {name: field for name, field in message.items() if field is not None} | {"content": content}


def read_tools(line: Mapping[str, Any]) -> Any:
    """Return the tools of a line, which may be there as text; None: there are none."""
    tools = line.get("tools")
    return (json.loads(tools) if isinstance(tools, str) else tools) or None


def _load_chat(line: Mapping[str, Any], template: ChatTemplate) -> Any:
    messages = read_messages(line.get(MESSAGES))
    if messages is None:
        raise ValueError(f"it has no list of {MESSAGES}, each with role and content")
    return build_chat(messages, read_tools(line), template)
