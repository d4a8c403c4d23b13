"""The tokens of a rollout that a teacher scores, and its scores by call. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import Transition

WHOLE = SequenceConfig(mode="trajectory", max_tokens=2**31)
"""Calls that extend each other are scored in one request."""
TEMPERATURE = 1.0
"""The only temperature at which a teacher's probabilities can be compared with the policy's."""


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A model's calls in a rollout, and the sequences that a teacher is asked about."""

    calls: Sequence[Transition]
    sequences: Sequence[TrainSequence]

    @classmethod
    def of_calls(cls, rollout_id: str, calls: Sequence[Transition], chosen: Collection[int]) -> "ScoredRollout":
        """Score the calls at the ``chosen`` places, but for those that were sampled at another temperature than 1."""
        others = {place: "teacher" for place in range(len(calls)) if place not in chosen}
        others |= {place: "temperature" for place, call in enumerate(calls) if call.temperature != TEMPERATURE}
        return cls(calls, build_sequences(rollout_id, calls, WHOLE, others)[0])

    def merge(self, scores: Sequence[TeacherScores], top_k: int = 0) -> TeacherScores:
        """Return the scores of all answers' tokens, from those of each sequence."""
        by_call: dict[int, TeacherScores] = {}
        for sequence, values in zip(self.sequences, scores, strict=True):
            by_call |= dict.fromkeys(np.unique(sequence.call_index[sequence.trained]).tolist(), values)
        parts = [
            by_call[call.index][len(call.prompt_ids) : call.length]
            if call.index in by_call
            else TeacherScores.empty(call.num_tokens)
            for call in self.calls
        ]
        return TeacherScores.join(parts, top_k)

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(call.num_tokens for call in self.calls)


def assign_calls(
    teachers: Sequence[TeacherSettings], labels: Mapping[str, str], calls: Sequence[Transition]
) -> dict[str, list[int]]:
    """Return the places of the calls that each teacher scores, by its name: the first that matches scores a call.

    ``labels`` are those of the calls' task. A call that no teacher matches is in none of the lists.
    """
    places: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        teacher = next((each for each in teachers if each.matches(labels, call.role)), None)
        if teacher is not None:
            places.setdefault(teacher.name, []).append(place)
    return places
