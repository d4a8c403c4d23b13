"""Files of answers to imitate: chats, or tokens of calls."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from lightningbus.learner.batching.demonstrations import Demonstration, Demonstrations
from lightningbus.learner.data_lines import build_each, read_lines
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.chats import ChatTemplate, build_chat, demonstrated_call
from lightningbus.learner.transitions.tokenizer import find_vocabulary_size

MESSAGES, PROMPT, RESPONSE = "messages", "prompt_ids", "response_ids"


def read_demonstrations(settings: LearnerSettings) -> Demonstrations:
    """Load what a learner imitates; raise ValueError as `load_demonstrations` and `Demonstrations`."""
    assert settings.supervised is not None
    return Demonstrations(load_demonstrations(settings.supervised.path, settings.model_path), settings)


def load_demonstrations(path: Path, model_path: Path) -> list[Demonstration]:
    """Load the demonstrations of a file; raise ValueError with a sentence that names file and line."""
    lines = list(read_lines(path))
    if lines and RESPONSE in lines[0]:
        return load_calls(path, lines, model_path)
    template = ChatTemplate.load(model_path)
    return build_each(path, lines, lambda number, line: Demonstration(f"chat-{number}", _load_chat(line, template)))


def load_calls(path: Path, lines: Sequence[Mapping[str, Any]], model_path: Path) -> list[Demonstration]:
    """Build a demonstration of each rollout whose calls' tokens are in ``lines``; raise ValueError for other tokens."""
    vocabulary_size = find_vocabulary_size(model_path)
    largest = max((max([*line[PROMPT], *line[RESPONSE]], default=0) for line in lines), default=0)
    if vocabulary_size is not None and largest >= vocabulary_size:
        raise ValueError(
            f"{path} has token {largest}, but the model has {vocabulary_size}: they are of another model's calls"
        )
    return [
        Demonstration(str(rollout), [demonstrated_call(line["call"], line[PROMPT], line[RESPONSE]) for line in calls])
        for rollout, calls in groupby(lines, key=lambda line: line["rollout"])
    ]


def read_messages(value: Any) -> list[dict[str, Any]] | None:
    """Return a list of messages without the fields that only others of a table have; None: it is no such list."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return None
    return [
        {name: field for name, field in message.items() if field is not None or name == "content"} for message in value
    ]


def read_tools(line: Mapping[str, Any]) -> Any:
    """Return the tools of a line, which may be there as text; None: there are none."""
    tools = line.get("tools")
    return (json.loads(tools) if isinstance(tools, str) else tools) or None


def _load_chat(line: Mapping[str, Any], template: ChatTemplate) -> Any:
    messages = read_messages(line.get(MESSAGES))
    if messages is None:
        raise ValueError(f"it has no list of {MESSAGES}, each with role and content")
    return build_chat(messages, read_tools(line), template)
