"""Files of answers to imitate: chats, or tokens of calls."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from lightningbus.learner.batching.demonstrations import Demonstration, Demonstrations
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.chats import ChatTemplate, build_chat, demonstrated_call
from lightningbus.learner.transitions.tokenizer import find_vocabulary_size
from lightningbus.tasks.task_source import TaskSource
from lightningbus.tasks.task_tables import read_rows

MESSAGES, PROMPT, RESPONSE = "messages", "prompt_ids", "response_ids"


def read_demonstrations(settings: LearnerSettings) -> Demonstrations:
    """Load what a learner imitates; raise ValueError as `load_demonstrations` and `Demonstrations`."""
    assert settings.supervised is not None
    return Demonstrations(load_demonstrations(settings.supervised.path, settings.model_path), settings)


def load_demonstrations(path: Path, model_path: Path) -> list[Demonstration]:
    """Load the demonstrations of a file; raise ValueError with a sentence that names file and line."""
    lines = list(enumerate(_read_lines(path), 1))
    if lines and RESPONSE in lines[0][1]:
        return _load_calls(path, [line for _, line in lines], find_vocabulary_size(model_path))
    template = ChatTemplate.load(model_path)
    loaded = []
    for number, line in lines:
        try:
            loaded.append(Demonstration(f"chat-{number}", _load_chat(line, template)))
        except Exception as error:  # a template is a program, and raises what it likes
            raise ValueError(f"{path}, line {number}: {error}") from error
    return loaded


def _load_chat(line: Mapping[str, Any], template: ChatTemplate) -> Any:
    messages, tools = line.get(MESSAGES), line.get("tools")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError(f"it has no list of {MESSAGES}, each with role and content")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    return build_chat([_without_nulls(message) for message in messages], tools or None, template)


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the fields that other messages of a table have."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _load_calls(path: Path, lines: list[dict[str, Any]], vocabulary_size: int | None) -> list[Demonstration]:
    largest = max((max([*line[PROMPT], *line[RESPONSE]], default=0) for line in lines), default=0)
    if vocabulary_size is not None and largest >= vocabulary_size:
        raise ValueError(
            f"{path} has token {largest}, but the model has {vocabulary_size}: they are of another model's calls"
        )
    return [
        Demonstration(str(rollout), [demonstrated_call(line["call"], line[PROMPT], line[RESPONSE]) for line in calls])
        for rollout, calls in groupby(lines, key=lambda line: line["rollout"])
    ]


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        if path.suffix == ".parquet":
            try:
                for row in read_rows(TaskSource(path=str(path))):
                    yield dict(row)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            return
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _read_object(path, number, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text") from error


def _read_object(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number} is no JSON object")
    return value
