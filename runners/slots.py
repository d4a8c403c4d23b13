"""A runner's slots, shared by training and evaluation."""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lightningbus.runners.gateway.slot import Slot
from lightningbus.schemas.base import Mode


class SlotsClosedError(Exception):
    """The runner starts no more rollouts."""


@dataclass
class SlotLease:
    """The use of a slot by one rollout."""

    slot: Slot
    release: Callable[[Mode], None]
    """Free the slot for the next rollout: the agent has ended, only publishing is left."""


class Slots:
    """Leases slots. A rollout that released its slot and is not published yet counts against its own mode only.

    So a full stream of one mode does not block the other mode, and at most as many rollouts wait for it as there are
    slots. An evaluation's rollout gets a slot before any training rollout: few of them delay training little. The
    free slot with the lowest number comes first, so that few processes are kept warm.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Prepare without slots until `open`; ``changed`` is called whenever `num_free` may have changed."""
        self._free: list[tuple[int, Slot]] = []  # a heap
        self._count = self._limit = 0
        self._publishing: Counter[Mode] = Counter()
        self._waiting: Counter[Mode] = Counter()
        self._started: Counter[Mode] = Counter()  # rollouts that run or are published
        self._on_change = changed
        self._changed = asyncio.Event()
        self._stopping = False

    def open(self, slots: Iterable[Slot], limit: int | None = None) -> None:
        """Lease these slots from now on, at most ``limit`` at once; None: all."""
        self._free = sorted((slot.number, slot) for slot in slots)
        self._count = len(self._free)
        self.resize(self._count if limit is None else limit)

    def resize(self, limit: int) -> None:
        """Lease at most so many slots at once, and at least one; rollouts that run beyond that go on to their end."""
        self._limit = max(1, min(limit, self._count))
        self._notify()

    @property
    def limit(self) -> int:
        """Most slots that are leased at once; 0 before `open`."""
        return self._limit

    @property
    def busy(self) -> int:
        """Slots in which an agent runs."""
        return self._count - len(self._free)

    def idle_numbers(self) -> list[int]:
        """List the numbers of slots in which no agent runs."""
        return sorted(number for number, _ in self._free)

    def num_free(self, mode: Mode) -> int:
        """Count how many more tasks of a mode can start."""
        return max(0, self._num_available(mode) - self._waiting[mode])

    def max_in_flight(self, mode: Mode, in_flight: Mapping[Mode, int]) -> int:
        """Compute how many tasks of a mode may be in flight to a runner that now has ``in_flight`` tasks of each mode.

        Some may have arrived and not asked for a slot yet. A slot is kept for each of them: else tasks would wait here
        while another runner is idle.
        """
        num_without_slot = sum(
            max(0, num - self._waiting[other] - self._started[other]) for other, num in in_flight.items()
        )
        return in_flight[mode] + max(0, self.num_free(mode) - num_without_slot)

    def stop(self) -> None:
        """Lease no more slots; waiting callers get `SlotsClosedError`."""
        self._stopping = True
        self._notify()

    @asynccontextmanager
    async def lease(self, mode: Mode) -> AsyncIterator[SlotLease]:
        """Lease a slot for the block, waiting for a free one; raises `SlotsClosedError` after `stop`."""
        slot = await self._acquire(mode)
        publishing: list[Mode] = []

        def release(of: Mode) -> None:
            if not publishing:
                publishing.append(of)
                self._publishing[of] += 1
                self._release(slot)

        try:
            yield SlotLease(slot, release)
        finally:
            self._started[mode] -= 1
            if publishing:
                self._publishing[publishing[0]] -= 1
                self._notify()
            else:
                slot.end()
                self._release(slot)

    async def _acquire(self, mode: Mode) -> Slot:
        self._waiting[mode] += 1
        try:
            while not self._stopping and self._num_available(mode) <= 0:
                self._changed.clear()
                await self._changed.wait()
            if self._stopping:
                raise SlotsClosedError
            self._started[mode] += 1
            return heapq.heappop(self._free)[1]
        finally:
            self._waiting[mode] -= 1
            self._on_change()

    def _num_available(self, mode: Mode) -> int:
        """Count the free slots that a mode may take; training leaves one to each evaluation that waits for it."""
        available = self._limit - self.busy - self._publishing[mode]
        if mode == "train":
            available -= min(self._waiting["eval"], max(0, self._num_available("eval")))
        return available

    def _release(self, slot: Slot) -> None:
        heapq.heappush(self._free, (slot.number, slot))
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._on_change()
