"""Answers to imitate, as sequences, in an order that the number of a step gives. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lightningbus.learner.batching.pass_order import PassOrder, mark_pass
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import Transition

CallKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A chat or a rollout: its answers as calls, each with the prompt before it."""

    id: str
    calls: Sequence[Transition]


class Demonstrations:
    """Sequences of demonstrations; every pass over them has an order of its own."""

    def __init__(self, demonstrations: Iterable[Demonstration], settings: LearnerSettings) -> None:
        """Build the sequences as those of rollouts; raise ValueError if there is nothing to learn from."""
        assert settings.supervised is not None
        config = SequenceConfig((), settings.sequence_mode, settings.seq_len, settings.overlong)
        built = [build_sequences(each.id, each.calls, config)[0] for each in demonstrations]
        self._sequences = [sequences for sequences in built if sequences]
        self.num_left_out = len(built) - len(self._sequences)
        """Demonstrations without an answer that fits seq_len."""
        if not self._sequences:
            raise ValueError(
                f"supervised.path: {settings.supervised.path} holds no answer to learn of at most seq_len "
                f"({settings.seq_len}) tokens"
            )
        self._order = PassOrder(len(self._sequences), settings.supervised.batch_size, settings.seed)

    def __len__(self) -> int:
        return len(self._sequences)

    def take(self, step: int) -> list[TrainSequence]:
        """Return the sequences of the step after ``step`` others; an id tells the passes apart."""
        return [
            mark_pass(sequence, epoch) for epoch, place in self._order.take(step) for sequence in self._sequences[place]
        ]


def list_calls(sequences: Iterable[TrainSequence]) -> list[CallKey]:
    """List the calls that sequences train."""
    return [
        (sequence.rollout_id, call)
        for sequence in sequences
        for call in np.unique(sequence.call_index[sequence.trained]).tolist()
    ]
