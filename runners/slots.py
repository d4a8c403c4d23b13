"""Which rollout may begin: a runner's slots, shared by training and evaluation."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from runners.gateway.slot import Slot
from schemas.base import Mode


class Stopping(Exception):
    """The runner begins no more rollouts."""


@dataclass
class Stay:
    """A rollout's stay in a slot."""

    slot: Slot
    leave: Callable[[Mode], None]
    """Its agent has ended, and the slot is for the next; what is left is to publish it into the stream of its mode."""


class Slots:
    """Hands out slots. A rollout that has left its slot and is not published yet counts against its own mode alone.

    So a full stream of one mode holds up no rollout of the other, and not more rollouts wait for it than there are
    slots.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """There is none before `open`; ``changed`` is called whenever `room` may have become another."""
        self._free: deque[Slot] = deque()
        self._count = 0
        self._publishing: Counter[Mode] = Counter()
        self._waiting: Counter[Mode] = Counter()
        self._tell = changed
        self._changed = asyncio.Event()
        self._stopping = False

    def open(self, slots: Iterable[Slot]) -> None:
        """These are handed out from now on."""
        self._free.extend(slots)
        self._count = len(self._free)
        self._notify()

    @property
    def busy(self) -> int:
        """Slots in which an agent is at work."""
        return self._count - len(self._free)

    def room(self, mode: Mode) -> int:
        """How many more tasks of a mode there is room for."""
        return max(0, len(self._free) - self._publishing[mode] - self._waiting[mode])

    def stop(self) -> None:
        """Hand out no more; whoever waits hears so."""
        self._stopping = True
        self._notify()

    @asynccontextmanager
    async def taken(self, mode: Mode) -> AsyncIterator[Stay]:
        """A slot while the block runs, or until it is left; waits for one, and raises `Stopping` if none will come."""
        slot = await self._take(mode)
        publishing: list[Mode] = []

        def leave(of: Mode) -> None:
            if not publishing:
                publishing.append(of)
                self._publishing[of] += 1
                self._give(slot)

        try:
            yield Stay(slot, leave)
        finally:
            if publishing:
                self._publishing[publishing[0]] -= 1
                self._notify()
            else:
                slot.end()
                self._give(slot)

    async def _take(self, mode: Mode) -> Slot:
        self._waiting[mode] += 1
        try:
            while not self._stopping and len(self._free) <= self._publishing[mode]:
                self._changed.clear()
                await self._changed.wait()
            if self._stopping:
                raise Stopping
            return self._free.popleft()
        finally:
            self._waiting[mode] -= 1
            self._tell()

    def _give(self, slot: Slot) -> None:
        self._free.append(slot)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._tell()
