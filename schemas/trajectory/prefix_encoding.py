"""The model calls of one attempt, each stored as what it adds to the calls before it. Pure.

A conversation of T turns repeats its history in every prompt; stored in full, that grows with T². So the own text of a
call is the new end of its prompt, followed by its response. A prompt is encoded as references to prefixes of earlier
calls' own texts, and a suffix. The digest of the full prompt proves that it was restored correctly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from lightningbus.schemas.spans import ModelCall, PrefixRef

TOKEN_BYTES = 4


class CorruptPromptError(ValueError):
    """A prompt cannot be restored: a call that it refers to is missing, or has changed."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text without what it shares with earlier ones: references to prefixes of their own texts, and a suffix."""

    prefix_refs: tuple[PrefixRef, ...]
    """Lengths are in units of the encoder."""
    suffix: bytes
    sha256: bytes
    """SHA-256 of the full text."""
    truncated_bytes: int = 0
    """Bytes over the limit, cut off at the end."""


@dataclass(frozen=True, slots=True)
class _KnownText:
    prefix_refs: tuple[PrefixRef, ...]
    own_text: bytes
    digest: Any
    """Running SHA-256 of everything up to the end of the own text; None where it was cut."""


@dataclass(slots=True)
class _Edge:
    """A stretch of one call's own text, in the tree of all texts."""

    call: int
    start: int
    end: int
    branches: dict[bytes, "_Edge"] = field(default_factory=dict)
    """Edges that continue this one, by their first unit or character."""


class PrefixEncoder:
    """Encodes the texts of one attempt; ``unit`` is the number of bytes per element (4: token ids; 1: UTF-8).

    ``limit`` is the largest suffix in bytes; the rest is cut off. All texts are in one tree, a branch where two begin
    to differ. So the cost of a text is its length, however many there are.
    """

    def __init__(self, unit: int = TOKEN_BYTES, limit: int | None = None) -> None:
        self._unit, self._limit = unit, limit
        self._known: list[_KnownText] = []
        self._root = _Edge(-1, 0, 0)

    def encode(self, prompt: bytes, response: bytes = b"") -> EncodedText:
        """Encode a prompt against the known text with the longest common prefix."""
        edge, offset, num_shared = self._follow(self._root, 0, prompt)
        parent = self._known[edge.call] if num_shared else None
        suffix = prompt[num_shared:]
        prefix_refs = (*parent.prefix_refs, (edge.call, offset // self._unit)) if parent is not None else ()
        if parent is not None and parent.digest is not None and offset == len(parent.own_text):
            digest = parent.digest.copy()
            digest.update(suffix)
        else:
            digest = sha256(prompt)
        prompt_sha256 = digest.digest()
        digest.update(response)
        kept = suffix if self._limit is None else suffix[: self._aligned(suffix, self._limit)]
        known = _KnownText(prefix_refs, kept + response, digest if kept == suffix else None)
        num_repeated = 0
        if not kept:  # another answer to the same prompt may begin as this one does
            edge, offset, num_repeated = self._follow(edge, offset, response)
        self._add(known, edge, offset, num_repeated)
        return EncodedText(prefix_refs, kept, prompt_sha256, len(suffix) - len(kept))

    def _follow(self, edge: _Edge, offset: int, text: bytes) -> tuple[_Edge, int, int]:
        """Follow a text from a place in the tree as far as it matches; return the place reached and the matched length.

        A place is an edge and an offset in its call's own text.
        """
        position = 0
        while position < len(text):
            if offset == edge.end:
                branch = edge.branches.get(self._first_unit(text, position))
                if branch is None:
                    break
                edge, offset = branch, branch.start
            num_equal = self._num_equal(text, position, edge, offset)
            position, offset = position + num_equal, offset + num_equal
            if offset < edge.end:
                break
        return edge, offset, position

    def _num_equal(self, text: bytes, position: int, edge: _Edge, offset: int) -> int:
        """Count bytes of whole units, or characters, that a text and the rest of an edge share."""
        length = min(len(text) - position, edge.end - offset)
        rest = text[position : position + length]
        known_text = self._known[edge.call].own_text[offset : offset + length]
        return length if rest == known_text else self._aligned(rest, common_prefix_len(rest, known_text))

    def _add(self, known: _KnownText, edge: _Edge, offset: int, start: int) -> None:
        """Insert a text into the tree, which has its own text up to ``start`` already."""
        call, own_text = len(self._known), known.own_text
        self._known.append(known)
        if start == len(own_text):
            return
        if offset < edge.end:
            rest = _Edge(edge.call, offset, edge.end, edge.branches)
            edge.end, edge.branches = offset, {self._first_unit(self._known[edge.call].own_text, offset): rest}
        edge.branches[self._first_unit(own_text, start)] = _Edge(call, start, len(own_text))

    def _first_unit(self, text: bytes, position: int) -> bytes:
        """Return the unit, or UTF-8 character, at a position."""
        lead = text[position]
        width = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return text[position : position + (self._unit if self._unit > 1 else width)]

    def _aligned(self, text: bytes, end: int) -> int:
        """Return the last boundary of a unit, or of a UTF-8 character, up to ``end``."""
        if self._unit > 1:
            return end - end % self._unit
        while 0 < end < len(text) and text[end] & 0xC0 == 0x80:  # inside a UTF-8 character
            end -= 1
        return end


def common_prefix_len(text: bytes, other: bytes) -> int:
    """Count equal leading bytes by bisection: comparing slices is faster than comparing bytes."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def expand_calls(calls: Sequence[ModelCall]) -> list[ModelCall]:
    """Restore the full prompts and requests of an attempt's calls; raise `CorruptPromptError`."""
    tokens: dict[int, bytes] = {}
    requests: dict[int, bytes] = {}
    expanded = []
    for call in calls:
        prompt = _expand(call, call.prompt_prefix_refs, call.prompt_ids, tokens, TOKEN_BYTES)
        if call.prompt_sha256 and sha256(prompt).digest() != call.prompt_sha256:
            raise CorruptPromptError(f"the prompt of call {call.index} does not match its digest")
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
            raise CorruptPromptError(f"call {call.index} refers to call {earlier}, which is missing")
        prefixes.append(prefix)
    return b"".join([*prefixes, suffix])
