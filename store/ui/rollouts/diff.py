"""Two rollouts of one task side by side, message by message. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

QueryRow = dict[str, Any]

WORDS = re.compile(r"\w+|\s+|[^\w\s]")
MAX_WORDS = 4000
"""Longer messages are not compared word by word."""


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message of a rollout; ``call`` is the model call that added or sampled it."""

    role: str
    text: str
    call: int


def transcript_of(calls: Sequence[QueryRow]) -> list[TranscriptMessage]:
    """Collect all messages of a rollout in order, from the calls of
    `lightningbus.store.ui.rollouts.rollout.build_calls`.
    """
    messages = []
    for call in calls:
        for message in call["messages"]:
            role = message.get("role") if isinstance(message, Mapping) else None
            messages.append(TranscriptMessage(str(role or "message"), message_text(message), call["call"]))
        messages.append(TranscriptMessage("assistant", message_text(call["answer"]), call["call"]))
    return messages


def message_text(message: Any) -> str:
    """Render a message as text: its content and its tool calls, else all of it as JSON."""
    if not isinstance(message, Mapping):
        return message if isinstance(message, str) else _to_json(message)
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        content = "\n".join(
            text if isinstance(text, str) else _to_json(part) for text, part in zip(parts, content, strict=True)
        )
    calls = message.get("tool_calls")
    texts = [content if isinstance(content, str) else _to_json(content) if content else "", _to_json(calls)]
    return "\n".join(text for text in (texts if calls else texts[:1]) if text) or (
        "" if "content" in message else _to_json(message)
    )


def align(first: Sequence[TranscriptMessage], second: Sequence[TranscriptMessage]) -> list[QueryRow]:
    """Align two transcripts: rows ``same``, or with at most one message a side and the differing pieces marked.

    A piece is a text and whether it differs from the other side.
    """
    rows: list[QueryRow] = []
    left_keys, right_keys = ([(message.role, message.text) for message in messages] for messages in (first, second))
    for kind, a, a_end, b, b_end in SequenceMatcher(None, left_keys, right_keys, autojunk=False).get_opcodes():
        while a < a_end or b < b_end:
            left = first[a] if a < a_end else None
            right = second[b] if b < b_end else None
            if kind == "equal" and left and right:
                rows.append({"same": True, "a": _cell(left), "b": _cell(right)})
            elif left and right and left.role == right.role:
                left_pieces, right_pieces = compare_words(left.text, right.text)
                rows.append({"same": False, "a": _cell(left, left_pieces), "b": _cell(right, right_pieces)})
            elif left:
                rows.append({"same": False, "a": _cell(left, [(left.text, True)]), "b": None})
                right = None
            elif right:
                rows.append({"same": False, "a": None, "b": _cell(right, [(right.text, True)])})
            a, b = a + (left is not None), b + (right is not None)
    return rows


def compare_words(first: str, second: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Split both texts into pieces, each shared with the other text or not."""
    words = [WORDS.findall(text) for text in (first, second)]
    if max(map(len, words)) > MAX_WORDS:
        return [(first, True)], [(second, True)]
    pieces: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for kind, a, a_end, b, b_end in SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes():
        for side, texts in zip(pieces, (words[0][a:a_end], words[1][b:b_end]), strict=True):
            if texts:
                side.append(("".join(texts), kind != "equal"))
    return pieces


def _cell(message: TranscriptMessage, pieces: Sequence[tuple[str, bool]] | None = None) -> QueryRow:
    return {"role": message.role, "call": message.call, "pieces": pieces or [(message.text, False)]}


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
