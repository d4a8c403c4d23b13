"""Model calls of one attempt, each kept as what it adds to those before it.

A conversation of T turns repeats its history in every prompt; sent and stored as it is, that grows with T². So a call's
own part is what is new in its prompt, then its answer, and a prompt is pieces of earlier calls' own parts and then its
own new part. The digest of the whole prompt shows that it was put together again as it was. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from schemas.spans import ModelCall, PrefixRef

TOKEN_BYTES = 4


class BrokenPrompt(ValueError):
    """A prompt cannot be put together again: a call it goes on from is missing, or is not what it was."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """A text less what it shares: pieces of earlier own parts, in order, and what comes after them."""

    prefix: tuple[PrefixRef, ...]
    new: bytes
    left_out: int = 0
    """Bytes at the end that are over the limit."""


@dataclass(frozen=True, slots=True)
class _Known:
    prefix: tuple[PrefixRef, ...]
    own: bytes
    digest: Any
    """SHA-256 of everything up to the end of the own part, to be gone on with."""


class Prefixes:
    """The texts of an attempt so far; ``unit`` is how many bytes belong together (4: token ids; 1: UTF-8).

    ``limit``: most bytes of what is new in one text; the rest is left out.
    """

    def __init__(self, unit: int = TOKEN_BYTES, limit: int | None = None) -> None:
        self._unit, self._limit = unit, limit
        self._known: list[_Known] = []

    def add(self, prompt: bytes, answer: bytes = b"") -> tuple[Shortened, bytes]:
        """What is new in a prompt, and the SHA-256 of all of it; lengths of pieces are in units.

        It goes on from the newest text it holds whole, else from the one that it shares most with.
        """
        parent, shared = self._parent(prompt)
        known = self._known[parent] if parent >= 0 else None
        new = prompt[shared:]
        if known is not None and shared == self._length(known):
            digest = known.digest.copy()
            digest.update(new)
        else:
            digest = sha256(prompt)
        prefix = tuple(self._cut(parent, shared))
        whole = digest.digest()
        digest.update(answer)
        kept = new if self._limit is None else new[: self._aligned(new, self._limit)]
        self._known.append(_Known(prefix, kept + answer, digest))
        return Shortened(prefix, kept, len(new) - len(kept)), whole

    def _parent(self, prompt: bytes) -> tuple[int, int]:
        best = (-1, 0)
        for index in reversed(range(len(self._known))):
            length = self._length(self._known[index])
            if length <= best[1]:
                continue
            text = self._text(index)
            if prompt.startswith(text):
                return index, length
            shared = self._aligned(prompt, common(prompt, text))
            if shared > best[1]:
                best = (index, shared)
        return best

    def _aligned(self, text: bytes, end: int) -> int:
        if self._unit > 1:
            return end - end % self._unit
        while 0 < end < len(text) and text[end] & 0xC0 == 0x80:  # amid a character of UTF-8
            end -= 1
        return end

    def _length(self, known: _Known) -> int:
        return sum(length for _, length in known.prefix) * self._unit + len(known.own)

    def _text(self, index: int) -> bytes:
        known = self._known[index]
        parts = [self._known[call].own[: length * self._unit] for call, length in known.prefix]
        return b"".join([*parts, known.own])

    def _cut(self, parent: int, shared: int) -> Iterable[PrefixRef]:
        if shared == 0:
            return
        known = self._known[parent]
        left = shared // self._unit
        for call, length in (*known.prefix, (parent, len(known.own) // self._unit)):
            taken = min(length, left)
            if taken:
                yield call, taken
            left -= taken


def common(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike, by halves: comparing slices is the quickest there is."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def whole(calls: Sequence[ModelCall]) -> list[ModelCall]:
    """The calls of an attempt with their whole prompts and requests; raises `BrokenPrompt`."""
    tokens: dict[int, bytes] = {}
    texts: dict[int, bytes] = {}
    found = []
    for call in calls:
        prompt = _joined(call, call.prompt_prefix_refs, call.prompt_ids, tokens, TOKEN_BYTES)
        if call.prompt_sha256 and sha256(prompt).digest() != call.prompt_sha256:
            raise BrokenPrompt(f"the prompt of call {call.index} is not what it was")
        request = _joined(call, call.request_prefix_refs, call.request.encode(), texts, 1)
        tokens[call.index] = call.prompt_ids + call.response_ids
        texts[call.index] = call.request.encode()
        parts = {"prompt_ids": prompt, "request": request.decode(), "prompt_prefix_refs": (), "request_prefix_refs": ()}
        found.append(replace(call, **parts))
    return found


def _joined(call: ModelCall, prefix: Iterable[PrefixRef], new: bytes, own: dict[int, bytes], unit: int) -> bytes:
    parts = []
    for earlier, length in prefix:
        part = own.get(earlier, b"")[: length * unit]
        if len(part) < length * unit:
            raise BrokenPrompt(f"call {call.index} goes on from call {earlier}, which is not there")
        parts.append(part)
    return b"".join([*parts, new])
