"""Roles of chat messages, and parts of their content. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

TEXT_TYPES = ("text", "refusal", "input_text", "output_text", "thinking", None)
"""Types of parts that are rendered as text."""

SYSTEM_ROLES = ("system", "developer")
"""Roles of messages that instruct the model."""


def text_part(text: Any) -> dict[str, Any]:
    """Build a part of text."""
    return {"type": "text", "text": str(text or "")}


def image_part(url: Any) -> dict[str, Any]:
    """Build a part with an image, by its URL or as a data URL."""
    return {"type": "image_url", "image_url": {"url": url}}


def left_out_part(kind: str, name: Any = "") -> dict[str, Any]:
    """Build the note that stands for content which the model cannot read, so that the agent can go on."""
    return text_part(f"[{kind}{f' {name}' if name else ''} left out: this model reads text only]")


def join_parts(parts: Sequence[Any], separator: str = "\n") -> Any:
    """Join parts to one text where all of them are text, by lines as vLLM does; return the list otherwise."""
    if all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return separator.join(str(part.get("text") or "") for part in parts)
    return list(parts)


def is_image(part: Any) -> bool:
    """Return whether a part of a message's content is an image."""
    return isinstance(part, dict) and part.get("type") in ("image_url", "input_image", "image")


def has_images(messages: Sequence[Any]) -> bool:
    """Return whether any message of a conversation has an image."""
    return any(map(is_image, _parts_of(messages)))


def has_media(messages: Sequence[Any]) -> bool:
    """Return whether any message of a conversation has a part that is no text, such as an image or sound."""
    return any(isinstance(part, dict) and part.get("type") not in TEXT_TYPES for part in _parts_of(messages))


def _parts_of(messages: Sequence[Any]) -> Iterator[Any]:
    for message in messages:
        if isinstance(message, dict) and isinstance(content := message.get("content"), list):
            yield from content
