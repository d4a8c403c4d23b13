"""Canary trial of a version before it is approved: the engine is measured on fixed prompts, without serving."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np
from msgspec.structs import replace

from lightningbus.bus.fleet.node_state import NodeEvent
from lightningbus.inference.engine.base import (
    Engine,
    EngineCapabilities,
    EngineError,
    EngineRejectedError,
    NotFiniteError,
)
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.schemas.weights.events import CanaryPrompt, CanarySpec
from lightningbus.schemas.weights.temperature import describe_temperature_error, find_temperature_error

MIN_LOGPROB = -9000.0
"""vLLM writes -9999 for minus infinity."""
NOT_FINITE = "the engine's log-probabilities are not finite"
MAX_LOGPROB_DIFFERENCE = 50.0
"""Beyond it k3 would overflow."""

Logprobs = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """``reason`` is empty if the version may be served. ``metrics``: see `evaluate`."""

    reason: str
    metrics: dict[str, float]
    is_kv_cache_tainted: bool = False
    """The engine's KV cache holds values that are not finite: other weights would compute from them, too."""


def evaluate(spec: CanarySpec, prompts: Logprobs, answers: Logprobs, previous_length: float | None) -> CanaryResult:
    """Evaluate a trial. Pure.

    ``prompts``: the engine's log-probability of each token of the prompts but their first; ``answers``: that of each
    token it sampled, prompt by prompt, at temperature 1. Metrics: ``k3_kl``, Schulman's k3 (mean of exp(d) - 1 - d, d
    being the learner's log-probability less the engine's) in nats per token; ``difference``, the mean of abs(d), in
    nats; ``tokens``, how many were compared. Unless it is an engine check also ``entropy``, the mean of -log p over
    the sampled tokens, in nats; ``length``, their mean number per answer.
    """
    learners = np.concatenate([np.frombuffer(prompt.logprobs, "<f4").astype(np.float64) for prompt in spec.prompts])
    engines = np.array([value for logprobs in prompts for value in logprobs])
    sampled = np.array([value for logprobs in answers for value in logprobs])
    for source, values in (("the learner", learners), ("the engine", engines), ("a sampled token", sampled)):
        bad = int((~np.isfinite(values) | (values < MIN_LOGPROB)).sum())
        if bad:
            is_tainted = bool(np.isnan(engines).any() or np.isnan(sampled).any())
            return CanaryResult(f"{bad} of {len(values)} log-probabilities of {source} are not finite", {}, is_tainted)
    if len(engines) != len(learners):
        return CanaryResult(f"the engine gave {len(engines)} log-probabilities for {len(learners)} tokens", {})
    difference = np.clip(learners - engines, -MAX_LOGPROB_DIFFERENCE, MAX_LOGPROB_DIFFERENCE)
    metrics = {
        "k3_kl": float(np.mean(np.expm1(difference) - difference)),
        "difference": float(np.mean(np.abs(difference))),
        "tokens": float(len(engines)),
    }
    violations = _find_differences(spec, metrics)
    if spec.is_engine_check and not violations:
        token_ids = np.concatenate([np.frombuffer(prompt.ids, "<u4")[1:] for prompt in spec.prompts])
        if error := describe_temperature_error(find_temperature_error(-difference, learners, token_ids)):
            violations.append(f"beside the learner's, the engine's log-probabilities {error}")
    if not spec.is_engine_check:
        if not len(sampled):
            return CanaryResult("no token was sampled", {})
        metrics["entropy"] = float(-np.mean(sampled))
        metrics["length"] = float(np.mean([len(logprobs) for logprobs in answers]))
        violations += _find_odd_answers(spec, metrics, previous_length)
    return CanaryResult("; ".join(violations), metrics)


def _find_differences(spec: CanarySpec, metrics: Mapping[str, float]) -> list[str]:
    violations = []
    if metrics["k3_kl"] > spec.max_kl:
        violations.append(f"k3-KL to the learner is {metrics['k3_kl']:.4g} nats per token, above {spec.max_kl:g}")
    if spec.max_difference is not None and metrics["difference"] > spec.max_difference:
        violations.append(
            f"engine and learner differ by {metrics['difference']:.3g} nats per token, where rounding explains "
            f"{spec.max_difference:.3g}"
        )
    return violations


def _find_odd_answers(spec: CanarySpec, metrics: Mapping[str, float], previous_length: float | None) -> list[str]:
    violations = []
    if not spec.min_entropy <= metrics["entropy"] <= spec.max_entropy:
        bounds = f"{spec.min_entropy:g} to {spec.max_entropy:g}"
        violations.append(f"entropy is {metrics['entropy']:.4g} nats per token, outside {bounds}")
    previous, length = previous_length, metrics["length"]
    if previous and length and max(previous / length, length / previous) > spec.max_length_ratio:
        violations.append(
            f"answers have {length:.3g} tokens, those of the version approved before {previous:.3g}: more than "
            f"{spec.max_length_ratio:g} times as many or as few"
        )
    return violations


def fit_to_context(spec: CanarySpec, max_model_len: int | None) -> CanarySpec:
    """Truncate a trial's prompts and answers so that they fit the engine's context."""
    if max_model_len is None:
        return spec
    max_tokens = min(spec.max_tokens, max(max_model_len // 2, 1))
    max_prompt = max_model_len - max_tokens
    prompts = tuple(
        CanaryPrompt(
            ids=prompt.ids[: 4 * max_prompt],
            logprobs=prompt.logprobs[: 4 * (min(len(prompt.ids) // 4, max_prompt) - 1)],
        )
        for prompt in spec.prompts
    )
    return replace(spec, prompts=prompts, max_tokens=max_tokens)


def fit_to_engine(spec: CanarySpec, engine: EngineCapabilities) -> CanarySpec:
    """Return a trial that fits an engine's context, with the bound of its number format."""
    spec = fit_to_context(spec, engine.max_model_len)
    if engine.is_float32 and spec.max_float32_difference is not None:
        return replace(spec, max_difference=spec.max_float32_difference)
    return spec


def read_prompt_ids(spec: CanarySpec) -> list[list[int]]:
    """Return the tokens of each prompt of a trial."""
    return [np.frombuffer(prompt.ids, "<u4").tolist() for prompt in spec.prompts]


class Canary(Protocol):
    """A node that can run a canary trial; `EngineCanary` is one."""

    async def drain_traffic(self) -> None:
        """Stop serving, and abort what is in flight."""
        ...

    async def run(self, spec: CanarySpec, version: int, previous_length: float | None) -> CanaryResult:
        """Evaluate the version that the engine has loaded."""
        ...

    async def await_next_version(self) -> None:
        """Become a node without weights: there is no version to roll back to."""
        ...

    async def restart_engine(self) -> None:
        """Stop the engine, which must not be used with any weights; raises."""
        ...


class EngineCanary:
    """Runs canary trials on this node; meanwhile other nodes serve the agents."""

    def __init__(self, engine: Engine, model: ServedModel, transition: Callable[[NodeEvent], Awaitable[None]]) -> None:
        self._engine, self._model, self._transition = engine, model, transition

    async def drain_traffic(self) -> None:
        """Stop serving; calls in flight are aborted and continue at another node from the tokens they have."""
        await self._transition("canary_started")
        await self._model.abort_in_flight()

    async def await_next_version(self) -> None:
        """Wait for a version that may be served."""
        self._model.version = None
        await self._transition("no_servable_version")

    async def restart_engine(self) -> NoReturn:
        """Stop the engine; the node starts another one. Always raises `EngineError`.

        Attention multiplies a masked position by 0, which is still NaN where the KV cache holds NaN.
        """
        await self._engine.stop()
        raise EngineError("the engine is stopped: its KV cache holds values that are not finite")

    async def run(self, spec: CanarySpec, version: int, previous_length: float | None) -> CanaryResult:
        """Query the engine and evaluate; raises `EngineError` without a response, which is no verdict."""
        spec = fit_to_engine(spec, self._engine.capabilities)
        prompts = read_prompt_ids(spec)
        model = self._model.engine_model_name(version) or self._model.name
        try:
            prompt_logprobs = await self._engine.score(model, prompts, version)
            if not np.isfinite([value for logprobs in prompt_logprobs for value in logprobs]).all():
                return evaluate(spec, prompt_logprobs, [], None)
            answers = (
                [] if spec.is_engine_check else await self._engine.sample(model, prompts, spec.max_tokens, version)
            )
        except NotFiniteError:
            return CanaryResult(NOT_FINITE, {}, is_kv_cache_tainted=True)
        except EngineRejectedError as error:
            return CanaryResult(str(error), {})
        return evaluate(spec, prompt_logprobs, answers, previous_length)
