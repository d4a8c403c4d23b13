"""Adapts the number of slots of a runner while it runs."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from lightningbus.common.observability.faults import count_fault
from lightningbus.common.processes import host_memory
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.concurrency.cohort_meter import CohortMeter
from lightningbus.runners.concurrency.pressure import NO_MEMORY, Memory, NodeLoad, Pressure
from lightningbus.runners.concurrency.search import MAX_SLOTS, SlotSearch
from lightningbus.schemas.base import Outcome

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
"""Seconds between two looks at memory and nodes: heartbeats come as often."""
RELIEF_SECONDS = 10.0
"""Seconds after which memory shows what fewer slots have freed."""
MEASURED = frozenset[Outcome]({"ok", "timeout"})
"""Outcomes of rollouts whose durations count: the others end early, and would seem to be fast."""


class RolloutTimer:
    """Times rollouts for the adaptation."""

    def __init__(self) -> None:
        self.meter = CohortMeter()
        self.measured = asyncio.Event()
        """Set when the meter has a cohort."""

    @contextmanager
    def rollout(self) -> Iterator[Callable[[Outcome], None]]:
        """Time the block as one rollout; it counts if the block calls with an outcome that is measured."""
        number, outcomes = self.meter.begin(time.monotonic()), list[Outcome]()
        try:
            yield outcomes.append
        finally:
            self.meter.end(number, time.monotonic(), not MEASURED.isdisjoint(outcomes))
            if self.meter.cohort is not None:
                self.measured.set()


class ConcurrencyAdaptation:
    """Changes the number of slots by what rollouts, memory and nodes show."""

    def __init__(
        self,
        timer: RolloutTimer,
        resize: Callable[[int], Awaitable[None]],
        trim: Callable[[], Awaitable[None]],
        count_busy: Callable[[], int],
        find_load: Callable[[], NodeLoad | None],
        measure_agents: Callable[[], Awaitable[int]],
    ) -> None:
        """Prepare to adapt.

        ``resize`` opens so many slots, and raises `AgentStartError` where no further agent can be started. ``trim``
        ends warm agents beyond the slots. ``find_load`` returns the load of the nodes that rollouts call.
        ``measure_agents`` returns the bytes of all agents' processes.
        """
        self._timer, self._resize, self._trim, self._count_busy = timer, resize, trim, count_busy
        self._find_load, self._measure_agents = find_load, measure_agents
        self._search, self._pressure = SlotSearch(), Pressure()
        self._relieved_at = -math.inf

    @property
    def slots(self) -> int:
        """Slots to use now."""
        return self._search.slots

    @property
    def reason(self) -> str:
        """Reason for the number of slots, for people."""
        return self._search.reason

    async def run(self) -> None:
        """Adapt until cancelled."""
        self._timer.meter.restart(self._search.cohort_size)
        while True:
            try:
                async with asyncio.timeout(SAMPLE_SECONDS):
                    await self._timer.measured.wait()
            except TimeoutError:
                pass
            self._timer.measured.clear()
            try:
                await self._look()
            except Exception as error:  # the number stays as it is; the next look may work
                count_fault("the number of slots", error)

    async def _look(self) -> None:
        self._pressure.add(_read_memory(), self._find_load())
        sign, cohort = self._pressure.sign, self._timer.meter.cohort
        if sign == NO_MEMORY:
            await self._trim()
        if sign and self.slots > 1 and self._has_effect():
            self._search.relieve(sign)
            self._pressure.clear_nodes()
            self._relieved_at = time.monotonic()
        elif cohort is not None:
            self._pressure.add(_read_memory(await self._measure_agents() / self.slots), self._find_load())
            self._search.decide(cohort, *self._pressure.room(MAX_SLOTS))
        else:
            return
        await self._apply()

    def _has_effect(self) -> bool:
        """Return whether the last relief has had its effect, so that another may follow."""
        return self._count_busy() <= self.slots and time.monotonic() - self._relieved_at >= RELIEF_SECONDS

    async def _apply(self) -> None:
        try:
            await self._resize(self.slots)
        except AgentStartError as error:
            log.warning("no more agents can be started: %s", error)
            self._search.withdraw("no more agents can be started")
        self._timer.meter.restart(self._search.cohort_size)
        log.debug("%d slots: %s", self.slots, self.reason)


def _read_memory(bytes_per_slot: float = 0.0) -> Memory | None:
    available, total = host_memory.available_bytes(), host_memory.total_bytes()
    return Memory(available, total, bytes_per_slot) if available is not None and total is not None else None
