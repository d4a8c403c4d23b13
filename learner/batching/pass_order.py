"""The order of passes over a data set: a number of a step gives the places that it trains. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from lightningbus.learner.transitions.sequences import TrainSequence

MARK = "#"
"""Between the id of a sequence's answer and the number of the pass."""


@dataclass(frozen=True, slots=True)
class PassOrder:
    """Passes over ``size`` places in steps of ``batch_size``; each pass has an order of its own."""

    size: int
    batch_size: int
    seed: int

    def take(self, step: int) -> list[tuple[int, int]]:
        """Return the step after ``step`` others, as the number of the pass and the place of each member."""
        first = step * self.batch_size
        numbers = [divmod(number, self.size) for number in range(first, first + self.batch_size)]
        orders = {epoch: self._order(epoch) for epoch, _ in numbers}
        return [(epoch, orders[epoch][number]) for epoch, number in numbers]

    def _order(self, epoch: int) -> list[int]:
        order: list[int] = np.random.default_rng([self.seed, epoch]).permutation(self.size).tolist()
        return order


def mark_pass(sequence: TrainSequence, epoch: int) -> TrainSequence:
    """Return a copy whose id tells the passes apart: a step may train the end of one and the beginning of the next."""
    return replace(sequence, rollout_id=f"{sequence.rollout_id}{MARK}{epoch}")


def drop_pass(rollout_id: str) -> str:
    """Return the id that `mark_pass` extended."""
    return rollout_id.rpartition(MARK)[0]
