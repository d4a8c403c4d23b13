"""The model calls of one attempt, each stored as what it adds to the calls before it. Pure.

A conversation of T turns repeats its history in every prompt; stored in full, that grows with T². So the own text of a
call is the new end of its prompt, followed by its response. A prompt is encoded as references to prefixes of earlier
calls' own texts, and a suffix. The digest of the full prompt proves that it was restored correctly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from schemas.spans import ModelCall, PrefixRef

TOKEN_BYTES = 4


class CorruptPrompt(ValueError):
    """A prompt cannot be restored: a call that it refers to is missing, or has changed."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text without what it shares with earlier ones: references to prefixes of their own texts, and a suffix."""

    prefix_refs: tuple[PrefixRef, ...]
    """Lengths are in units of the encoder."""
    suffix: bytes
    sha256: bytes
    """Of the full text."""
    truncated_bytes: int = 0
    """Bytes over the limit, cut off at the end."""


@dataclass(frozen=True, slots=True)
class _KnownText:
    prefix_refs: tuple[PrefixRef, ...]
    own_text: bytes
    digest: Any
    """Running SHA-256 of everything up to the end of the own text."""


class PrefixEncoder:
    """Encodes the texts of one attempt; ``unit`` is the number of bytes per element (4: token ids; 1: UTF-8).

    ``limit`` is the largest suffix in bytes; what is over it is cut off.
    """

    def __init__(self, unit: int = TOKEN_BYTES, limit: int | None = None) -> None:
        self._unit, self._limit = unit, limit
        self._known: list[_KnownText] = []

    def encode(self, prompt: bytes, response: bytes = b"") -> EncodedText:
        """The prompt, encoded against the newest text that it extends, else the one that it shares most with."""
        parent, shared_bytes = self._find_parent(prompt)
        known = self._known[parent] if parent >= 0 else None
        suffix = prompt[shared_bytes:]
        if known is not None and shared_bytes == self._length(known):
            digest = known.digest.copy()
            digest.update(suffix)
        else:
            digest = sha256(prompt)
        prefix_refs = tuple(self._prefix_refs(parent, shared_bytes))
        prompt_sha256 = digest.digest()
        digest.update(response)
        kept = suffix if self._limit is None else suffix[: self._aligned(suffix, self._limit)]
        self._known.append(_KnownText(prefix_refs, kept + response, digest))
        return EncodedText(prefix_refs, kept, prompt_sha256, len(suffix) - len(kept))

    def _find_parent(self, prompt: bytes) -> tuple[int, int]:
        """Index of the text to refer to (-1: none), and the number of bytes shared with it."""
        best = (-1, 0)
        for index in reversed(range(len(self._known))):
            length = self._length(self._known[index])
            if length <= best[1]:
                continue
            text = self._full_text(index)
            if prompt.startswith(text):
                return index, length
            shared_bytes = self._aligned(prompt, common_prefix_len(prompt, text))
            if shared_bytes > best[1]:
                best = (index, shared_bytes)
        return best

    def _aligned(self, text: bytes, end: int) -> int:
        """The last boundary of a unit, or of a UTF-8 character, up to ``end``."""
        if self._unit > 1:
            return end - end % self._unit
        while 0 < end < len(text) and text[end] & 0xC0 == 0x80:  # inside a UTF-8 character
            end -= 1
        return end

    def _length(self, known: _KnownText) -> int:
        return sum(length for _, length in known.prefix_refs) * self._unit + len(known.own_text)

    def _full_text(self, index: int) -> bytes:
        known = self._known[index]
        prefixes = [self._known[call].own_text[: length * self._unit] for call, length in known.prefix_refs]
        return b"".join([*prefixes, known.own_text])

    def _prefix_refs(self, parent: int, shared_bytes: int) -> Iterable[PrefixRef]:
        if shared_bytes == 0:
            return
        known = self._known[parent]
        remaining = shared_bytes // self._unit
        for call, length in (*known.prefix_refs, (parent, len(known.own_text) // self._unit)):
            used = min(length, remaining)
            if used:
                yield call, used
            remaining -= used


def common_prefix_len(text: bytes, other: bytes) -> int:
    """Number of equal leading bytes, by bisection: comparing slices is faster than comparing bytes."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def expand_calls(calls: Sequence[ModelCall]) -> list[ModelCall]:
    """The calls of an attempt with full prompts and requests; raises `CorruptPrompt`."""
    tokens: dict[int, bytes] = {}
    requests: dict[int, bytes] = {}
    expanded = []
    for call in calls:
        prompt = _expand(call, call.prompt_prefix_refs, call.prompt_ids, tokens, TOKEN_BYTES)
        if call.prompt_sha256 and sha256(prompt).digest() != call.prompt_sha256:
            raise CorruptPrompt(f"the prompt of call {call.index} does not match its digest")
        request = _expand(call, call.request_prefix_refs, call.request.encode(), requests, 1)
        tokens[call.index] = call.prompt_ids + call.response_ids
        requests[call.index] = call.request.encode()
        fields = {
            "prompt_ids": prompt,
            "request": request.decode(),
            "prompt_prefix_refs": (),
            "request_prefix_refs": (),
        }
        expanded.append(replace(call, **fields))
    return expanded


def _expand(
    call: ModelCall, prefix_refs: Iterable[PrefixRef], suffix: bytes, own_texts: dict[int, bytes], unit: int
) -> bytes:
    prefixes = []
    for earlier, length in prefix_refs:
        prefix = own_texts.get(earlier, b"")[: length * unit]
        if len(prefix) < length * unit:
            raise CorruptPrompt(f"call {call.index} refers to call {earlier}, which is missing")
        prefixes.append(prefix)
    return b"".join([*prefixes, suffix])
