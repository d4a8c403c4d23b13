"""Recorded calls as what can be recomputed: tokens of one engine and version, with how they were sampled. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.common.role_settings import KvCachePolicy
from lightningbus.schemas.spans import ModelCall, SpanBatch
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls

GREEDY = 1e-5
"""Below this temperature vLLM takes the likeliest token."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
}
CONSTRAINTS = (
    "logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "response_format", "structured_outputs",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "logits_processors",
)  # fmt: skip
"""Fields of a request that change the distribution in ways that are not recomputed."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, by vLLM's names."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        """Whether nothing was drawn at random."""
        return self.temperature < GREEDY


@dataclass(frozen=True, slots=True, eq=False)
class AuditSample:
    """A call, of which the tokens of one engine and version are audited."""

    run_id: str
    rollout_id: str
    execution_id: str
    model: str
    call: int
    """Its index in the attempt."""
    engine_id: str
    version: int
    prompt_ids: NDArray[np.int64]
    response_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    """``float32[T]``, as recorded."""
    start: int
    end: int
    """End of the audited tokens in the response, exclusive."""
    sampling: Sampling


def build_samples(batches: Sequence[SpanBatch], kv_cache_on_swap: KvCachePolicy) -> list[AuditSample]:
    """Build the recomputable samples of an attempt; raise ValueError if its calls cannot be read."""
    calls = sorted((span.call for batch in batches for span in batch.spans if span.call), key=lambda call: call.index)
    return [
        sample
        for call in expand_calls(calls)
        if is_recomputable(call)
        for sample in _samples_of(batches[-1], call, kv_cache_on_swap)
    ]


def is_recomputable(call: ModelCall) -> bool:
    """Return whether a call's record alone determines the distribution it was sampled from."""
    settings = call.sampling_params
    if any(settings.get(name, values[0]) not in values for name, values in NEUTRAL.items()):
        return False
    try:
        body = json.loads(call.request or "{}")
    except ValueError:  # too long, so it was cut off
        return False
    if not isinstance(body, dict) or any(body.get(name) or settings.get(name) for name in CONSTRAINTS):
        return False
    if body.get("tool_choice") not in (None, "auto", "none"):
        return False
    sampling = _sampling_of(call)
    return not sampling.is_greedy or sampling == Sampling(temperature=sampling.temperature)


def _samples_of(batch: SpanBatch, call: ModelCall, kv_cache_on_swap: KvCachePolicy) -> Iterator[AuditSample]:
    num_tokens = len(call.response_ids) // 4
    if len(call.logprobs) != len(call.response_ids) or not call.prompt_ids:
        raise ValueError(f"call {call.index} has not one log-probability per token, or no prompt")
    for span in call.weight_versions[: None if kv_cache_on_swap == "recompute" else 1]:
        if span.engine_id and span.start < span.end <= num_tokens:
            yield AuditSample(
                run_id=batch.run_id,
                rollout_id=batch.rollout_id,
                execution_id=batch.execution_id,
                model=call.model,
                call=call.index,
                engine_id=span.engine_id,
                version=span.version,
                prompt_ids=np.frombuffer(call.prompt_ids, "<u4").astype(np.int64),
                response_ids=np.frombuffer(call.response_ids, "<u4").astype(np.int64),
                logprobs=np.frombuffer(call.logprobs, "<f4"),
                start=span.start,
                end=span.end,
                sampling=_sampling_of(call),
            )


def _sampling_of(call: ModelCall) -> Sampling:
    """Read a call's sampling parameters; raise ValueError for values that are no numbers."""
    settings = call.sampling_params
    try:
        return Sampling(
            temperature=float(settings.get("temperature", 1.0)),
            top_p=float(settings.get("top_p", 1.0)),
            top_k=max(int(settings.get("top_k", 0)), 0),
            min_p=float(settings.get("min_p", 0.0)),
        )
    except TypeError as error:
        raise ValueError(f"call {call.index}: {error}") from error
