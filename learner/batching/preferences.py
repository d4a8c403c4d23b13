"""Pairs of a better and a worse answer, as sequences, in an order that the number of a step gives. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lightningbus.learner.batching.demonstrations import Demonstration
from lightningbus.learner.batching.pass_order import PassOrder, mark_pass
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import Transition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to the same prompt, the better one first."""

    chosen: Demonstration
    rejected: Demonstration


@dataclass(frozen=True, slots=True)
class Pair:
    """Ids that the sequences of a better and of a worse answer have in a batch."""

    chosen: str
    rejected: str


class Preferences:
    """Sequences of pairs; every pass over them has an order of its own."""

    def __init__(self, preferences: Iterable[Preference], settings: LearnerSettings) -> None:
        """Build the sequences as those of rollouts; raise ValueError if there is no pair to learn from.

        A pair is left out as a whole where one of its answers is too long.
        """
        assert settings.preferences is not None
        config = SequenceConfig((), settings.sequence_mode, settings.seq_len, settings.overlong)
        members = list(preferences)
        differing = [each for each in members if not _is_same(each.chosen.calls, each.rejected.calls)]
        built = [(_build_answer(each.chosen, config), _build_answer(each.rejected, config)) for each in differing]
        self._pairs = [(chosen, rejected) for chosen, rejected in built if chosen and rejected]
        self.num_equal = len(members) - len(differing)
        """Pairs whose answers are the same."""
        self.num_too_long = len(differing) - len(self._pairs)
        """Pairs with an answer that does not fit seq_len, or is empty."""
        if not self._pairs:
            raise ValueError(
                f"preferences.path: {settings.preferences.path} holds no pair of different answers of at most seq_len "
                f"({settings.seq_len}) tokens"
            )
        self._order = PassOrder(len(self._pairs), settings.preferences.batch_size, settings.seed)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def sequences(self) -> list[TrainSequence]:
        """The sequences of all answers, without a mark of a pass."""
        return [sequence for pair in self._pairs for answer in pair for sequence in answer]

    def take(self, step: int) -> tuple[list[TrainSequence], list[Pair]]:
        """Return the sequences and pairs of the step after ``step`` others; an id tells the passes apart."""
        sequences, pairs = list[TrainSequence](), list[Pair]()
        for epoch, place in self._order.take(step):
            chosen, rejected = ([mark_pass(row, epoch) for row in answer] for answer in self._pairs[place])
            sequences += [*chosen, *rejected]
            pairs.append(Pair(chosen[0].rollout_id, rejected[0].rollout_id))
        return sequences, pairs


def choose_pair(members: Sequence[T], reward_of: Callable[[T], float]) -> tuple[T, T] | None:
    """Return the member of the largest reward and that of the smallest, the first of equals; None: all are equal."""
    best, worst = max(members, key=reward_of), min(members, key=reward_of)
    return None if reward_of(best) == reward_of(worst) else (best, worst)


def _build_answer(answer: Demonstration, config: SequenceConfig) -> list[TrainSequence]:
    sequences, excluded = build_sequences(answer.id, answer.calls, config)
    return [] if "too long" in excluded.values() else sequences


def _is_same(first: Sequence[Transition], second: Sequence[Transition]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(call.prompt_ids, other.prompt_ids) and np.array_equal(call.response_ids, other.response_ids)
        for call, other in zip(first, second, strict=True)
    )
