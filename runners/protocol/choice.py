"""One sampled choice of a model call, as it is recorded."""

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schemas.spans import VersionSpan


@dataclass(frozen=True, slots=True)
class SampledChoice:
    """One sampled choice; array fields are little-endian bytes, u32 ids and f32 log-probabilities."""

    model: str
    response_id: str
    prompt_ids: bytes
    response_ids: bytes
    logprobs: bytes
    token_texts: tuple[str, ...]
    """The text of each response token; empty where the engine did not say it."""
    weight_versions: tuple[VersionSpan, ...]
    finish_reason: str
    sampling: dict[str, Any]
    response: str

    @property
    def num_tokens(self) -> list[int]:
        """Prompt and answer."""
        return [*self._ids(self.prompt_ids), *self._ids(self.response_ids)]

    @staticmethod
    def _ids(raw: bytes) -> tuple[int, ...]:
        return struct.unpack(f"<{len(raw) // 4}I", raw)


def pack_array(code: str, values: list[Any]) -> bytes:
    """``u32`` (I) or ``f32`` (f) bytes, little-endian whatever the machine."""
    packed = array(code, values)
    if array("H", [1]).tobytes() == b"\x00\x01":
        packed.byteswap()
    return packed.tobytes()


def version_spans(pieces: list[tuple[int, int]]) -> Iterator[VersionSpan]:
    """Pieces of (version, tokens) in order, as runs of one version each."""
    start = end = 0
    current: int | None = None
    for version, tokens in pieces:
        if current is not None and version != current:
            yield VersionSpan(version=current, start=start, end=end)
            start = end
        current, end = version, end + tokens
    if current is not None:
        yield VersionSpan(version=current, start=start, end=end)
