"""Trying a version on this node before it is released: what the engine makes of fixed prompts, and what follows."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from msgspec.structs import replace

from bus.fleet.node_state import Happening
from inference.engine.vllm_server import EngineError, EngineRejectedError, VllmServer
from inference.gateway.server import Gateway
from schemas.weights.events import CanaryPrompt, CanarySpec

MIN_LOGPROB = -9000.0
"""vLLM writes -9999 for minus infinity."""
NO_WORD_FOR_NAN = "not JSON compliant"
NOT_FINITE = "the engine's log-probabilities are not finite"
LARGEST_DIFFERENCE = 50.0
"""Of log-probabilities: beyond it k3 would only overflow."""

Logprobs = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """``reason`` is empty if the version may be served. Figures: see `judged`."""

    reason: str
    figures: dict[str, float]
    is_kv_cache_tainted: bool = False
    """What is not finite is in the engine's KV cache now, and would come out under other weights, too."""


def evaluate(trial: CanarySpec, prompts: Logprobs, answers: Logprobs, length_before: float | None) -> CanaryResult:
    """What a trial has shown. Pure.

    ``prompts``: the engine's log-probability of each token of the cases but their first; ``answers``: that of each
    token it sampled, prompt by prompt, at temperature 1. Figures: ``k3_kl``, Schulman's k3 (mean of exp(d) - 1 - d, d
    being the learner's log-probability less the engine's) in nats per token; ``entropy``, the mean of -log p over the
    sampled tokens, in nats; ``length``, their mean number per answer; ``tokens``, how many were compared.
    """
    learners = np.concatenate([np.frombuffer(case.logprobs, "<f4").astype(np.float64) for case in trial.prompts])
    engines = np.array([value for one in prompts for value in one])
    sampled = np.array([value for one in answers for value in one])
    for whose, values in (("the learner", learners), ("the engine", engines), ("a sampled token", sampled)):
        bad = int((~np.isfinite(values) | (values < MIN_LOGPROB)).sum())
        if bad:
            spoiled = bool(np.isnan(engines).any() or np.isnan(sampled).any())
            return CanaryResult(f"{bad} of {len(values)} log-probabilities of {whose} are not finite", {}, spoiled)
    if len(engines) != len(learners):
        return CanaryResult(f"the engine gave {len(engines)} log-probabilities for {len(learners)} tokens", {})
    if not len(sampled):
        return CanaryResult("no token was sampled", {})
    difference = np.clip(learners - engines, -LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
    figures = {
        "k3_kl": float(np.mean(np.exp(difference) - 1 - difference)),
        "entropy": float(-np.mean(sampled)),
        "length": float(np.mean([len(one) for one in answers])),
        "tokens": float(len(engines)),
    }
    return CanaryResult("; ".join(_violations(trial, figures, length_before)), figures)


def _violations(trial: CanarySpec, figures: Mapping[str, float], length_before: float | None) -> list[str]:
    found = []
    if figures["k3_kl"] > trial.max_kl:
        found.append(f"k3-KL to the learner is {figures['k3_kl']:.4g} nats per token, above {trial.max_kl:g}")
    if not trial.min_entropy <= figures["entropy"] <= trial.max_entropy:
        bounds = f"{trial.min_entropy:g} to {trial.max_entropy:g}"
        found.append(f"entropy is {figures['entropy']:.4g} nats per token, outside {bounds}")
    before, now = length_before, figures["length"]
    if before and now and max(before / now, now / before) > trial.max_length_ratio:
        found.append(
            f"answers have {now:.3g} tokens, those of the version released before {before:.3g}: more than "
            f"{trial.max_length_ratio:g} times as many or as few"
        )
    return found


def fit_to_context(trial: CanarySpec, context: int | None) -> CanarySpec:
    """The trial with its prompts cut to what fits an engine's context beside the answers."""
    if context is None:
        return trial
    answer = min(trial.max_tokens, max(context // 2, 1))
    most = context - answer
    cases = tuple(
        CanaryPrompt(ids=case.ids[: 4 * most], logprobs=case.logprobs[: 4 * (min(len(case.ids) // 4, most) - 1)])
        for case in trial.prompts
    )
    return replace(trial, prompts=cases, max_tokens=answer)


class Canary(Protocol):
    """A node that can try a version; `EngineCanary` is one."""

    async def withdraw(self) -> None:
        """Serve nobody from now on."""
        ...

    async def judge(self, trial: CanarySpec, version: int, length_before: float | None) -> CanaryResult:
        """Judge the version the engine holds."""
        ...

    async def give_up(self) -> None:
        """There is no version to go back to."""
        ...

    async def renew(self) -> None:
        """The engine is not to be used any more, whatever weights it holds; raises."""
        ...


class EngineCanary:
    """This node as one that tries versions: agents are answered elsewhere for the time."""

    def __init__(
        self, engine: VllmServer, model: str, gateway: Gateway, happen: Callable[[Happening], Awaitable[None]]
    ) -> None:
        self._engine, self._model, self._gateway, self._happen = engine, model, gateway, happen

    async def withdraw(self) -> None:
        """Serve nobody: who is being answered goes on at another node from the tokens it has."""
        await self._happen("withdrawn")
        await self._gateway.abort_in_flight()

    async def give_up(self) -> None:
        """Wait for a version that stands."""
        self._gateway.version = None
        await self._happen("nothing_stands")

    async def renew(self) -> NoReturn:
        """Give this engine up: the node starts another one. Always raises `EngineError`.

        A masked place of attention counts 0 times what lies there, and that is NaN where NaN lies.
        """
        await self._engine.stop()
        raise EngineError("vLLM is ended: its KV cache holds what is not finite")

    async def judge(self, trial: CanarySpec, version: int, length_before: float | None) -> CanaryResult:
        """Ask the engine and judge; raises `EngineError` if it does not answer at all, which says nothing."""
        trial = fit_to_context(trial, self._engine.max_model_len)
        prompts = [np.frombuffer(case.ids, "<u4").tolist() for case in trial.prompts]
        model = self._gateway.engine_model_name(version) or self._model
        asked = {"model": model, "prompt": prompts, "temperature": 1.0, "cache_salt": f"v{version}"}
        try:
            read = await self._ask({**asked, "max_tokens": 1, "prompt_logprobs": 0})
            told = [[_of(place, token) for place, token in zip(*pair, strict=True)] for pair in _told(read, prompts)]
            if not np.isfinite([value for one in told for value in one]).all():
                return evaluate(trial, told, [], None)
            said = await self._ask({**asked, "max_tokens": trial.max_tokens, "logprobs": 0})
            answers = [[_number(one) for one in choice["logprobs"]["token_logprobs"]] for choice in said]
        except EngineRejectedError as error:
            spoiled = NO_WORD_FOR_NAN in str(error)
            return CanaryResult(NOT_FINITE if spoiled else str(error), {}, spoiled)
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(f"vLLM answers a trial in a form that is not understood: {error!r}") from error
        return evaluate(trial, told, answers, length_before)

    async def _ask(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """A choice for each prompt, in their order."""
        answer = await self._engine.post_json("/v1/completions", body)
        return sorted(answer["choices"], key=lambda choice: int(choice["index"]))


def _told(choices: Sequence[dict[str, Any]], prompts: Sequence[Sequence[int]]) -> list[tuple[Any, Sequence[int]]]:
    """What is said of each token but the first, with these tokens."""
    return [(choice["prompt_logprobs"][1:], prompt[1:]) for choice, prompt in zip(choices, prompts, strict=True)]


def _of(place: dict[str, Any], token: int) -> float:
    return _number(place[str(token)]["logprob"])


def _number(value: Any) -> float:
    """JSON has no word for what is not a number."""
    return math.nan if value is None else float(value)
