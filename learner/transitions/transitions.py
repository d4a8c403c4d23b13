"""LightningRL's transitions: each model call of a rollout as arrays (input, output, sampling)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.transitions.truncation import MIN_TEMPERATURE, find_forced, find_truncations
from lightningbus.schemas.spans import ModelCall
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """One call: ``int64[P]`` prompt, ``int64[T]`` response, ``float32[T]`` log-probabilities it was sampled with."""

    index: int
    role: str
    temperature: float
    prompt_ids: Ids
    response_ids: Ids
    logprobs: NDArray[np.float32]
    versions: Ids
    """``int64[T]``: the weight version that made each token."""
    forced: NDArray[np.bool_] | None = None
    """``bool[T]``: tokens that nobody sampled, which are not trained; None: all were sampled."""
    teacher_scores: TeacherScores | None = None
    """Scores of the response by a teacher; None: no teacher has scored it."""
    teacher: str = ""
    """Name of that teacher."""
    truncations: tuple[str, ...] = ()
    """Settings by which it was sampled from another distribution than the learner's, as of `find_truncations`."""

    @property
    def num_tokens(self) -> int:
        """Response tokens."""
        return len(self.response_ids)

    @property
    def num_forced(self) -> int:
        """Response tokens that nobody sampled."""
        return 0 if self.forced is None else int(self.forced.sum())

    @property
    def length(self) -> int:
        """Prompt and response together: how long a sequence has to be to train it."""
        return len(self.prompt_ids) + len(self.response_ids)


def build_transitions(calls: Sequence[ModelCall], model: str | None = None) -> list[Transition]:
    """Build the transitions of a model's calls, in order; None: of all calls.

    Raises ValueError for a malformed one: a rollout is not trained on in part.
    """
    return [_transition(call) for call in expand_calls(calls) if model in (None, call.model)]


def add_teacher_scores(calls: Sequence[Transition], scores: Mapping[str, TeacherScores]) -> list[Transition]:
    """Return copies of a rollout's calls with the scores of the first teacher that has any.

    ``scores``, by teacher, come call after call. Raises ValueError for scores of other calls.
    """
    starts = np.cumsum([0, *(call.num_tokens for call in calls)], dtype=np.int64)
    if any(len(values) != starts[-1] for values in scores.values()):
        raise ValueError("a teacher's scores are of other calls than the rollout's")
    scored = list(calls)
    for place, call in enumerate(calls):
        for teacher, values in scores.items():
            part = values[starts[place] : starts[place + 1]]
            if part.is_scored.any():
                scored[place] = replace(call, teacher_scores=part, teacher=teacher)
                break
    return scored


def token_versions(call: ModelCall) -> Ids:
    """Expand the runs to ``int64[T]``; raise ValueError unless they cover every token once."""
    tokens = len(call.response_ids) // 4
    versions = np.full(tokens, -1, dtype=np.int64)
    for run in call.weight_versions:
        versions[run.start : run.end] = run.version
    if sum(run.end - run.start for run in call.weight_versions) != tokens or (versions < 0).any():
        raise ValueError(f"the version runs of call {call.index} do not cover its {tokens} tokens")
    return versions


def _transition(call: ModelCall) -> Transition:
    if len(call.logprobs) != len(call.response_ids):
        raise ValueError(f"call {call.index} has not one log-probability per token")
    temperature = call.sampling_params.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or not math.isfinite(temperature):
        raise ValueError(f"call {call.index} was sampled at temperature {temperature!r}")
    logprobs = np.frombuffer(call.logprobs, dtype="<f4")
    if not np.isfinite(logprobs).all():
        raise ValueError(f"call {call.index} has a log-probability that is not finite")
    return Transition(
        index=call.index,
        role=call.role,
        temperature=max(float(temperature), MIN_TEMPERATURE) if temperature > 0 else float(temperature),
        prompt_ids=np.frombuffer(call.prompt_ids, dtype="<u4").astype(np.int64),
        response_ids=np.frombuffer(call.response_ids, dtype="<u4").astype(np.int64),
        logprobs=logprobs,
        versions=token_versions(call),
        forced=find_forced(call.sampling_params, logprobs),
        truncations=tuple(find_truncations(call.sampling_params)),
    )
