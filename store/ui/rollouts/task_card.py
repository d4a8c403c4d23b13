"""A task as a reader sees it: the question, the expected answer, and what else its input has. Pure."""

import json
from collections.abc import Mapping
from typing import Any

QUESTION_KEYS = ("question", "prompt", "problem", "query", "instruction", "input", "text", "messages")
"""Fields of an input that hold the question; the first that is there counts."""
EXPECTED_KEYS = (
    "answer", "expected", "expected_answer", "target", "solution", "ground_truth", "reference", "gold", "label",
)  # fmt: skip
"""Fields of an input that hold the expected answer; the first that is there counts."""


def describe_task(text: str) -> dict[str, Any]:
    """Split the JSON of a task's input into ``question``, ``expected`` and ``fields``, all as texts.

    An input that is no object is the question. Without an expected answer ``expected`` is empty.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if not isinstance(value, Mapping):
        return {"question": to_text(value), "expected": "", "fields": {}}
    question = next((name for name in QUESTION_KEYS if name in value), "")
    expected = next((name for name in EXPECTED_KEYS if name in value), "")
    return {
        "question": _question_text(value[question]) if question else "",
        "expected": to_text(value[expected]) if expected else "",
        "fields": {str(name): to_text(item) for name, item in value.items() if name not in (question, expected)},
    }


def to_text(value: Any) -> str:
    """Return a text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _question_text(value: Any) -> str:
    """Return the last message of a chat, else the value."""
    last = value[-1] if isinstance(value, list) and value else None
    content = last.get("content") if isinstance(last, Mapping) else None
    return content if isinstance(content, str) else to_text(value)
