"""The beginning of a JSON object that is the same however the object is serialised again. Pure.

Some of an engine's parsers give a call's arguments as the model wrote them, others as ``json.dumps`` of what they read.
An argument that is sent while it comes must be the beginning of both.
"""

import json
import re

_TEXT = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')
"""Characters of a string that stand for themselves."""
_ESCAPE = re.compile(r'\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))')
"""Escapes that ``json.dumps`` writes."""
_NUMBER = re.compile(r"[-+.0-9eE]+")
_LITERALS = ("true", "false", "null")
_AFTER = {"{": "first key", "[": "first value"}


class JsonPrefix:
    """Takes an object's text in pieces, as it comes."""

    def __init__(self) -> None:
        self._text, self._at = "", 0
        self._open: list[str] = []
        """Objects and lists around the position."""
        self._expected = "object"
        self.is_complete = False
        """Whether the object has ended, and all of it is in the prefix."""

    @property
    def prefix(self) -> str:
        """Everything returned so far."""
        return self._text[: self._at]

    def feed(self, text: str) -> str:
        """Take the next piece; return by how much the prefix grows. It never grows again once it could differ."""
        self._text += text
        start = self._at
        while self._at < len(self._text) and not self.is_complete:
            length = self._next_length()
            if not length:
                break
            self._at += length
        return self._text[start : self._at]

    def _next_length(self) -> int:
        """Measure the next part that is certain; 0: its end has not come, or it could be written in another way."""
        expected, char = self._expected, self._text[self._at]
        if expected in ("key text", "value text"):
            return self._text_length(char)
        if expected in ("space before key", "space before value"):
            return self._expect("key" if expected.endswith("key") else "value") if char == " " else 0
        if expected == "colon":
            return self._expect("space before value") if char == ":" else 0
        if char in "}]" and expected in ("first key", "first value", "comma"):
            return self._close(char)
        if expected == "comma":
            after = "space before key" if self._open[-1] == "{" else "space before value"
            return self._expect(after) if char == "," else 0
        if expected in ("key", "first key"):
            return self._expect("key text") if char == '"' else 0
        return self._begin_value(char, is_object=expected == "object")

    def _expect(self, what: str) -> int:
        self._expected = what
        return 1

    def _begin_value(self, char: str, is_object: bool) -> int:
        if char == "{" or (char == "[" and not is_object):
            self._open.append(char)
            return self._expect(_AFTER[char])
        if is_object:
            return 0
        if char == '"':
            return self._expect("value text")
        literal = next((word for word in _LITERALS if self._text.startswith(word, self._at)), "")
        length = len(literal) or self._number_length()
        self._expected = "comma" if length else self._expected
        return length

    def _number_length(self) -> int:
        number = _NUMBER.match(self._text, self._at)
        if number is None or number.end() == len(self._text):
            return 0
        try:
            is_same = json.dumps(json.loads(number[0])) == number[0]
        except ValueError:
            return 0
        return len(number[0]) if is_same else 0

    def _text_length(self, char: str) -> int:
        if char == '"':
            return self._expect("colon" if self._expected == "key text" else "comma")
        if (part := _TEXT.match(self._text, self._at) or _ESCAPE.match(self._text, self._at)) is None:
            return 0
        return len(part[0])

    def _close(self, char: str) -> int:
        if self._open[-1] + char not in ("{}", "[]"):
            return 0
        self._open.pop()
        self.is_complete = not self._open
        return self._expect("comma")
