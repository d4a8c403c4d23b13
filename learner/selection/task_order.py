"""Dispatch order of a run's tasks: every task once a pass, each pass with a new shuffle."""

import asyncio
import random
from array import array

MAX_KEPT_ORDERS = 2
"""Passes whose order is kept: at the end of one, groups of the next are dispatched too."""


class TaskOrder:
    """Position of each group of a run, deterministic by seed; a pass is shuffled once."""

    def __init__(self, num_tasks: int, seed: int | str) -> None:
        self._num_tasks, self._seed = num_tasks, seed
        self._orders: dict[int, array[int]] = {}

    async def seek(self, group_number: int) -> tuple[int, int]:
        """Return the same as `at`, shuffling a new pass in a thread: 400,000 tasks take up to seconds."""
        number = group_number // self._num_tasks
        if number not in self._orders:
            self._keep(number, await asyncio.to_thread(shuffle, self._num_tasks, self._seed, number))
        return self.at(group_number)

    def at(self, group_number: int) -> tuple[int, int]:
        """Return the pass number and the task's index of group ``group_number``."""
        number, index = divmod(group_number, self._num_tasks)
        if number not in self._orders:
            self._keep(number, shuffle(self._num_tasks, self._seed, number))
        return number, self._orders[number][index]

    def _keep(self, number: int, order: "array[int]") -> None:
        self._orders[number] = order
        while len(self._orders) > MAX_KEPT_ORDERS:
            del self._orders[next(iter(self._orders))]


def shuffle(num_tasks: int, seed: int | str, number: int) -> "array[int]":
    """Shuffle the tasks' indices for a pass."""
    order = array("Q", range(num_tasks))
    random.Random(f"{seed}:{number}").shuffle(order)
    return order
