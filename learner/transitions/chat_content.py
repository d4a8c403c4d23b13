"""The content of a chat's messages: a text, or several parts of text, as vLLM reads them. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]
TEXT_FIELDS = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking",
}  # fmt: skip
"""Type of a part of text -> its field with the text, as vLLM has them."""
SEPARATOR = "\n"
"""Between the parts for a template that reads texts only, as vLLM joins them."""
PROBE = "a probe of the template"
PROBE_CHATS: Mapping[str, Sequence[str]] = {
    "system": ("system", "user"),
    "user": ("user",),
    "assistant": ("user", "assistant"),
}


def read_content(content: Any) -> str | list[dict[str, str]]:
    """Return a message's content as a text, or as several parts of text; raise ValueError for anything else."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ValueError(f"its content is {type(content).__name__}: give a text, or a list of parts of text")
    texts = [text for part in content if (text := _read_part(part)) is not None]
    return "".join(texts) if len(texts) < 2 else [_text_part(text) for text in texts]


def _read_part(part: Any) -> str | None:
    """Return the text of a part; None: it has none."""
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
    field = TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise ValueError(f"its content has a part of type {kind!r}: a model learns from text alone")
    text = part.get(field)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"its content has a part whose {field} is not a text")
    return text


def join_parts(messages: Sequence[Message], part_roles: Collection[str]) -> list[Message]:
    """Return the messages with their parts as one text, but for the roles whose parts the template reads itself."""
    return [
        {**message, "content": SEPARATOR.join(part["text"] for part in parts)}
        if isinstance(parts := message.get("content"), list) and message.get("role") not in part_roles
        else message
        for message in messages
    ]


def find_part_roles(render: Render) -> set[str]:
    """Find the roles whose content a template reads as a list of parts too, by what it makes of one part."""
    return {role for role, chat in PROBE_CHATS.items() if _reads_parts(render, role, chat)}


def _reads_parts(render: Render, role: str, chat: Sequence[str]) -> bool:
    def build(probe: Any) -> list[Message]:
        return [{"role": each, "content": probe if each == role else "x"} for each in chat]

    try:
        text = render(build(PROBE))
        return PROBE in text and render(build([_text_part(PROBE)])) == text
    except ValueError:  # The template refuses the role, or a list.
        return False


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
