"""Chat messages as agents send them: whether two say the same. Pure."""

from collections.abc import Sequence
from typing import Any


def alike(one: Any, other: Any) -> bool:
    """Whether two messages are the same; clients give one back without the fields that are empty."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return bool(one == other)
    return {key: value for key, value in one.items() if value} == {key: value for key, value in other.items() if value}


def goes_on(messages: Sequence[Any], history: Sequence[Any]) -> bool:
    """Whether messages begin with all of a history, and more follow."""
    return len(messages) > len(history) and all(map(alike, messages, history))
