"""Comparison of chat messages as agents send them. Pure."""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(order="deterministic")
ASSISTANT_DROPPED = ("name", "index")
"""Fields that clients add to an answer when they send it back."""


def same_message(message: Any, other: Any) -> bool:
    """Return whether two messages have one meaning, as `canonical_message` sees it."""
    return bool(canonical_message(message) == canonical_message(other))


def extends(messages: Sequence[Any], history: Sequence[Any]) -> bool:
    """Return whether messages begin with a whole history, and more follow."""
    return len(messages) > len(history) and all(map(same_message, messages, history))


def canonical_message(message: Any) -> Any:
    """Return a message in the form in which messages of one meaning are equal; leave any other value as it is.

    Clients send an answer back without its empty fields or its last white space, with its text as parts, with other
    white space in the arguments of tool calls, or with a name.
    """
    if not isinstance(message, dict):
        return message
    canonical = {key: value for key, value in message.items() if value}
    if "content" in canonical:
        canonical["content"] = _joined_text(canonical["content"])
    if message.get("role") != "assistant":
        return canonical
    for name in ASSISTANT_DROPPED:
        canonical.pop(name, None)
    if "reasoning_content" in canonical:
        canonical.setdefault("reasoning", canonical.pop("reasoning_content"))
    if isinstance(text := canonical.get("content"), str):
        canonical["content"] = text.rstrip()
    if isinstance(calls := canonical.get("tool_calls"), list):
        canonical["tool_calls"] = [_canonical_call(call) for call in calls]
    return {key: value for key, value in canonical.items() if value}


def digest_prefixes(messages: Sequence[Any], before: bytes = b"") -> Iterator[bytes]:
    """Yield a digest of the conversation up to each message; ``before`` is what comes before its first."""
    digest = before
    for message in messages:
        digest = blake2b(digest + encode_sorted(canonical_message(message)), digest_size=16).digest()
        yield digest


def encode_sorted(value: Any) -> bytes:
    """Encode JSON in which the order of fields does not matter."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, sort_keys=True).encode()


def parse_arguments(arguments: Any) -> Any:
    """Parse a tool call's arguments; return those that are no JSON as they are."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def _joined_text(content: Any) -> Any:
    """Join content that consists of texts only."""
    parts = content if isinstance(content, list) else [None]
    if all(isinstance(part, dict) and part.keys() == {"type", "text"} for part in parts):
        return "".join(str(part["text"]) for part in content)
    return content


def _canonical_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return [call.get("id"), function.get("name"), parse_arguments(function.get("arguments"))]
