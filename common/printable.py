"""Untrusted text on a terminal: control characters are shown, not executed. Pure."""

import json
import re
from collections.abc import Callable
from typing import Any

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but for tab and newline, DEL, C1, what turns the direction of writing, halves of surrogate pairs."""
DELETE, REPLACEMENT = 0x7F, "\ufffd"


def to_printable(text: str) -> str:
    """Replace each control character by a picture: ␛ for ESC, � for those that have none."""
    return CONTROL.sub(_control_picture, text)


def printable_json(value: Any, indent: int | None = None, default: Callable[[Any], Any] = str) -> str:
    """Encode JSON without control characters, so that terminals can show it; ``indent`` and ``default`` are json's."""
    return CONTROL.sub(_escape, json.dumps(value, indent=indent, default=default, ensure_ascii=False))


def _control_picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\u2421" if code == DELETE else chr(0x2400 + code) if code < 0x20 else REPLACEMENT


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
