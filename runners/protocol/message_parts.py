"""Parts of a chat message's content. Pure."""

from collections.abc import Sequence
from typing import Any


def text_part(text: Any) -> dict[str, Any]:
    """Build a part of text."""
    return {"type": "text", "text": str(text or "")}


def image_part(url: Any) -> dict[str, Any]:
    """Build a part with an image, by its URL or as a data URL."""
    return {"type": "image_url", "image_url": {"url": url}}


def left_out_part(kind: str, name: Any = "") -> dict[str, Any]:
    """Build the note that stands for content which the model cannot read, so that the agent can go on."""
    return text_part(f"[{kind}{f' {name}' if name else ''} left out: this model reads text only]")


def join_parts(parts: Sequence[dict[str, Any]]) -> Any:
    """Join parts to one text where all of them are text; return the list otherwise."""
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return list(parts)


def is_image(part: Any) -> bool:
    """Return whether a part of a message's content is an image."""
    return isinstance(part, dict) and part.get("type") in ("image_url", "input_image", "image")


def has_images(messages: Sequence[Any]) -> bool:
    """Return whether any message of a conversation has an image."""
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return any(is_image(part) for content in contents if isinstance(content, list) for part in content)
