"""Comparison of chat messages as agents send them. Pure."""

from collections.abc import Sequence
from typing import Any


def same_message(message: Any, other: Any) -> bool:
    """Return whether two messages are equal; clients send a message back without its empty fields."""
    return bool(without_empty(message) == without_empty(other))


def extends(messages: Sequence[Any], history: Sequence[Any]) -> bool:
    """Return whether messages begin with a whole history, and more follow."""
    return len(messages) > len(history) and all(map(same_message, messages, history))


def without_empty(message: Any) -> Any:
    """Remove the empty fields of a message, as comparison needs it; leave any other value as it is."""
    return {key: value for key, value in message.items() if value} if isinstance(message, dict) else message
