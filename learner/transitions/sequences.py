"""Token sequences that are trained on: every sampled token is trained in exactly one of them. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.transitions.prefix_tree import find_parents
from lightningbus.learner.transitions.transitions import Ids, Transition

CONTEXT = -1
"""The call index of a token that is not trained."""
SequenceMode = Literal["transition", "trajectory"]
Overlong = Literal["mask", "split"]
NONE: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class TrainSequence:
    """``N`` tokens of a rollout; all trained ones were sampled at the same temperature.

    ``token_ids`` is ``int64[N]``. ``call_index`` (``int64[N]``) is the call that sampled a trained token, `CONTEXT` for
    the others. ``logprobs`` (``float32[N]``) and ``weight_versions`` (``int64[N]``) have no meaning for context.
    ``teacher_scores`` are of all ``N`` tokens; None: no teacher has scored any.
    """

    rollout_id: str
    temperature: float
    token_ids: Ids
    call_index: Ids
    logprobs: NDArray[np.float32]
    weight_versions: Ids
    teacher_scores: TeacherScores | None = None

    @property
    def trained(self) -> NDArray[np.bool_]:
        """``bool[N]``: the tokens that are trained."""
        return np.not_equal(self.call_index, CONTEXT)

    @property
    def num_tokens(self) -> int:
        """Number of trained tokens."""
        return int(self.trained.sum())

    def restrict(self, chosen: NDArray[np.bool_]) -> Self:
        """Return a copy that trains only the chosen tokens, ``bool[N]``."""
        return replace(self, call_index=np.where(chosen, self.call_index, CONTEXT))


def scored_sequence(rollout_id: str, token_ids: Sequence[int]) -> TrainSequence:
    """Make a sequence of which only log-probabilities are computed: every token but the first counts as trained."""
    length = len(token_ids)
    call_index = np.zeros(length, np.int64)
    call_index[0] = CONTEXT
    logprobs, versions = np.zeros(length, np.float32), np.zeros(length, np.int64)
    return TrainSequence(rollout_id, 1.0, np.array(token_ids, np.int64), call_index, logprobs, versions)


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """Settings of the conversion of calls to sequences, by the same names."""

    roles: Collection[str] = ()
    mode: SequenceMode = "trajectory"
    max_tokens: int = 8192
    overlong: Overlong = "mask"


def build_sequences(
    rollout_id: str,
    calls: Sequence[Transition],
    config: SequenceConfig,
    not_trained: Mapping[int, str] = NONE,
) -> tuple[list[TrainSequence], dict[int, str]]:
    """Return the sequences in call order, and by index the reason why a call was excluded.

    ``not_trained`` has reasons of its own, by index.

    ``transition``: a sequence per call. ``trajectory``: calls that extend each other share a sequence; a prefix that
    several share is trained in one of them and is context in the others.
    """
    excluded = {
        index: reason
        for index, call in enumerate(calls)
        if (reason := _exclusion_reason(call, config) or not_trained.get(index, ""))
    }
    parents = find_parents(calls) if config.mode == "trajectory" else [None] * len(calls)
    pending = set(range(len(calls))) - excluded.keys()
    sequences: list[TrainSequence] = []
    for index in reversed(range(len(calls))):  # extensions come later, so each path starts at its end
        if index not in pending:
            continue
        call = calls[index]
        if call.length > config.max_tokens:
            pending.discard(index)
            sequences += reversed(_sliding_windows(rollout_id, call, config.max_tokens))
            continue
        path = [index]
        while (parent := parents[path[-1]]) is not None:
            path.append(parent)
        members = [member for member in path if member in pending and calls[member].temperature == call.temperature]
        pending.difference_update(members)
        sequences.append(_build_sequence(rollout_id, call, [calls[member] for member in members]))
    return sequences[::-1], excluded


def _exclusion_reason(call: Transition, config: SequenceConfig) -> str:
    if config.roles and call.role not in config.roles:
        return "role"
    if call.num_tokens == call.num_forced or len(call.prompt_ids) == 0:
        return "empty"
    if call.temperature <= 0:
        return "greedy"
    if call.length > config.max_tokens and config.overlong == "mask":
        return "too long"
    return ""


def _build_sequence(rollout_id: str, last: Transition, trained: Sequence[Transition]) -> TrainSequence:
    """Build the whole context of the last call of a path, with the responses of the calls that are trained in it."""
    token_ids = np.concatenate([last.prompt_ids, last.response_ids])
    call_index = np.full(len(token_ids), CONTEXT, dtype=np.int64)
    logprobs = np.zeros(len(token_ids), dtype=np.float32)
    versions = np.full(len(token_ids), CONTEXT, dtype=np.int64)
    for call in trained:
        response = slice(len(call.prompt_ids), call.length)
        call_index[response], logprobs[response], versions[response] = call.index, call.logprobs, call.versions
        if call.forced is not None:
            call_index[response][call.forced] = CONTEXT
    scores = _spread_scores(trained, len(token_ids))
    return TrainSequence(rollout_id, last.temperature, token_ids, call_index, logprobs, versions, scores)


def _spread_scores(trained: Sequence[Transition], length: int) -> TeacherScores | None:
    """Return the scores of a path's calls, which come in the reverse of its order, at their places in the path."""
    parts, end = list[TeacherScores](), 0
    for call in sorted(trained, key=lambda call: call.length):
        if call.teacher_scores is not None:
            parts += [TeacherScores.empty(len(call.prompt_ids) - end), call.teacher_scores]
            end = call.length
    return TeacherScores.join([*parts, TeacherScores.empty(length - end)]) if parts else None


def _sliding_windows(rollout_id: str, call: Transition, max_tokens: int) -> list[TrainSequence]:
    """Cut a call that is too long: each token is trained once, behind at least half a window of context."""
    whole = _build_sequence(rollout_id, call, [call])
    step = max_tokens // 2
    windows = []
    for start in range(len(call.prompt_ids), call.length, step):
        end = min(start + step, call.length)
        window = slice(max(0, end - max_tokens), end)
        call_index = whole.call_index.copy()
        call_index[:start] = CONTEXT
        windows.append(
            TrainSequence(
                rollout_id,
                call.temperature,
                whole.token_ids[window],
                call_index[window],
                whole.logprobs[window],
                whole.weight_versions[window],
                whole.teacher_scores[window] if whole.teacher_scores is not None else None,
            )
        )
    return windows
