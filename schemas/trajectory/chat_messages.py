"""Comparison of chat messages as agents send them. Pure."""

from collections.abc import Sequence
from typing import Any


def same_message(message: Any, other: Any) -> bool:
    """Whether two messages are equal; clients send a message back without its empty fields."""
    if not isinstance(message, dict) or not isinstance(other, dict):
        return bool(message == other)
    return _without_empty(message) == _without_empty(other)


def extends(messages: Sequence[Any], history: Sequence[Any]) -> bool:
    """Whether messages begin with a whole history, and more follow."""
    return len(messages) > len(history) and all(map(same_message, messages, history))


def _without_empty(message: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in message.items() if value}
