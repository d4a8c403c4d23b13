"""One sampled choice of a model call, as it is recorded."""

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import VersionSpan

SAMPLING_KEYS = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "seed", "stop", "n",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logit_bias", "bad_words",
    "allowed_token_ids", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "tool_choice", "thinking_token_budget",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SampledPiece:
    """Tokens that came in one chunk."""

    version: int
    engine_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ExternalAnswer:
    """Metadata that an external endpoint reports with its answer."""

    host: str
    model: str
    """The name of the model there."""
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    """Tokens of all choices; None where the endpoint gives none, or another choice has them already."""

    def span_attributes(self) -> dict[str, object]:
        """Return OpenTelemetry's attributes of the answer."""
        known = {
            attributes.PROVIDER: "openai",
            attributes.SERVER_ADDRESS: self.host,
            attributes.RESPONSE_MODEL: self.model,
            attributes.INPUT_TOKENS: self.prompt_tokens,
            attributes.OUTPUT_TOKENS: self.response_tokens,
        }
        return {name: value for name, value in known.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class SampledChoice:
    """One sampled choice; array fields are little-endian bytes, u32 ids and f32 log-probabilities."""

    model: str
    response_id: str
    prompt_ids: bytes
    response_ids: bytes
    logprobs: bytes
    token_texts: tuple[str, ...]
    """Text of each response token; empty where the engine gave none."""
    weight_versions: tuple[VersionSpan, ...]
    finish_reason: str
    sampling: dict[str, Any]
    response: str
    external: ExternalAnswer | None = None
    """Set where no inference node answered: then there are no token ids, log-probabilities and versions."""
    missing_tokens: str = ""
    """Reason why the tokens of an inference node's answer are left out of the record; empty if they are in it."""

    def without_tokens(self, reason: str) -> "SampledChoice":
        """Reduce the choice to its text, which is not trained."""
        return replace(
            self,
            missing_tokens=reason,
            prompt_ids=b"",
            response_ids=b"",
            logprobs=b"",
            token_texts=(),
            weight_versions=(),
        )

    @property
    def num_tokens(self) -> list[int]:
        """Prompt and answer."""
        return [*self._ids(self.prompt_ids), *self._ids(self.response_ids)]

    @staticmethod
    def _ids(raw: bytes) -> tuple[int, ...]:
        return struct.unpack(f"<{len(raw) // 4}I", raw)


def recorded_sampling(call: ChatRequest, sampling: dict[str, Any]) -> dict[str, Any]:
    """Collect the sampling settings of a call, of which ``sampling`` is forced."""
    settings = call.force(sampling)
    return {key: settings[key] for key in SAMPLING_KEYS if settings.get(key) is not None}


def pack_array(code: str, values: list[Any]) -> bytes:
    """Pack values as ``u32`` (I) or ``f32`` (f) bytes, little-endian on every machine."""
    packed = array(code, values)
    if array("H", [1]).tobytes() == b"\x00\x01":
        packed.byteswap()
    return packed.tobytes()


def version_spans(pieces: list[SampledPiece]) -> Iterator[VersionSpan]:
    """Join pieces of a response, in order, to runs of one version and engine each."""
    start = 0
    for (version, engine_id), run in groupby(pieces, key=lambda piece: (piece.version, piece.engine_id)):
        end = start + sum(piece.num_tokens for piece in run)
        yield VersionSpan(version=version, start=start, end=end, engine_id=engine_id)
        start = end
