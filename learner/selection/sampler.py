"""Order of tasks by weight: each comes in proportion to its weight, and none is left out for ever. Pure."""

import random
from array import array

import numpy as np
from numpy.typing import NDArray

SPREAD = 0.25
"""Largest deviation of a turn from its regular time, so that the same tasks do not share each step."""


class WeightedTurns:
    """Turns of ``n`` tasks. The next is the one with the greatest weight times the groups since its last turn.

    So its share of the turns is in proportion to its weight, roughly. With equal weights each task has its
    first turn before any has a second. Where no weight is above 1, a task of weight w waits for at most
    2 (n + 1) / w + n + 1 turns.
    """

    def __init__(self, order: "array[int]", seed: int) -> None:
        """Prepare turns of ``len(order)`` tasks; those that had none yet come in this order."""
        self._order, self._seed = np.asarray(order, np.int64), seed
        num_tasks = len(order)
        self._place = np.empty(num_tasks, np.int64)
        self._place[self._order] = np.arange(num_tasks)
        self._last = np.full(num_tasks, -num_tasks, np.int64)  # by place in the order, as all arrays here
        self._factor = np.ones(num_tasks)

    def note(self, index: int, number: int) -> None:
        """Note that a task has the turn ``number``; an earlier one than its last changes nothing."""
        place = self._place[index]
        if number > self._last[place]:
            self._last[place] = number
            self._factor[place] = random.Random(f"{self._seed}:{index}:{number}").uniform(1 - SPREAD, 1 + SPREAD)

    def next(self, weights: NDArray[np.float64], number: int) -> int:
        """Return the index of the task for the turn ``number``; ``weights`` are by index, some above 0."""
        return int(self._order[np.argmax(weights[self._order] * self._factor * (number - self._last))])

    def waited(self, number: int) -> NDArray[np.int64]:
        """Return ``int64[n]``: the groups since the last turn of each task, by index."""
        return np.asarray(number - self._last, np.int64)[self._place]
