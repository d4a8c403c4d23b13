"""Adapts the number of slots of a runner while it runs."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.observability.faults import count_fault
from lightningbus.common.processes import host_memory
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.concurrency.cohort_meter import CohortMeter, End
from lightningbus.runners.concurrency.pressure import NO_MEMORY, Memory, NodeLoad, Pressure
from lightningbus.runners.concurrency.search import FIRST_SLOTS, MAX_SLOTS, MIN_USE, SlotSearch
from lightningbus.schemas.base import Outcome

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
"""Seconds between two looks at rollouts, memory and nodes: heartbeats come as often."""
RELIEF_SECONDS = 10.0
"""Seconds after which memory shows what fewer slots have freed."""
ENDS: Mapping[Outcome, End] = MappingProxyType({"ok": "whole", "timeout": "cut off"})
"""End of a rollout by its outcome; the other outcomes come early, and would seem to be fast."""
NO_AGENTS = "no more agents can be started"


class RolloutTimer:
    """Times rollouts for the adaptation."""

    def __init__(self) -> None:
        self.meter = CohortMeter()

    @contextmanager
    def rollout(self) -> Iterator[Callable[[Outcome], None]]:
        """Time the block as one rollout; the block calls with its outcome, unless it is cancelled."""
        number, outcomes = self.meter.begin(time.monotonic()), list[Outcome]()
        try:
            yield outcomes.append
        finally:
            self.meter.end(number, time.monotonic(), ENDS.get(outcomes[0], "failed") if outcomes else "failed")


class ConcurrencyAdaptation:
    """Changes the number of slots by what rollouts, memory and nodes show."""

    def __init__(
        self,
        timer: RolloutTimer,
        resize: Callable[[int], Awaitable[None]],
        trim: Callable[[int], Awaitable[None]],
        count_busy: Callable[[], int],
        find_load: Callable[[], NodeLoad | None],
        measure_slot: Callable[[], Awaitable[float]],
    ) -> None:
        """Prepare to adapt.

        ``resize`` opens so many slots, and raises `AgentStartError` where no further agent can be started. ``trim``
        ends the agents of idle slots beyond so many. ``find_load`` returns the load of the nodes that rollouts call
        now. ``measure_slot`` returns the bytes that the agent of a slot takes on average.
        """
        self._timer, self._resize, self._trim, self._count_busy = timer, resize, trim, count_busy
        self._find_load, self._measure_slot = find_load, measure_slot
        self._search, self._pressure = SlotSearch(), Pressure()
        self._num_open = self._search.num_slots
        self._relieved_at = -math.inf

    @property
    def num_slots(self) -> int:
        """Slots to use now."""
        return self._search.num_slots

    @property
    def reason(self) -> str:
        """Reason for the number of slots, for people."""
        return self._search.reason

    async def run(self) -> None:
        """Adapt until cancelled."""
        self._timer.meter.restart(self._search.cohort_size)
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            try:
                await self.look()
            except Exception as error:  # the number stays as it is; the next look may work
                count_fault("the number of slots", error)

    async def look(self) -> None:
        """Sample memory and nodes, and change the number of slots if they or a measurement ask for it."""
        self._add_sample()
        await self._trim(self._search.num_warm)  # also those of a step that could not be made
        cohort = self._timer.meter.measure(time.monotonic())
        if self._can_relieve():
            self._search.relieve(self._pressure.sign, self._num_least)
            self._pressure.clear_nodes()
            self._relieved_at = time.monotonic()
        elif cohort is not None:
            self._search.decide(cohort, *self._pressure.find_room(MAX_SLOTS, await self._measure_slot()))
        else:
            return
        await self._apply()

    def _add_sample(self) -> None:
        self._pressure.add(_read_memory(), self._find_load())

    @property
    def _num_least(self) -> int:
        """Slots that the present pressure leaves: other runners may be the ones that fill the nodes."""
        return 1 if self._pressure.sign == NO_MEMORY else FIRST_SLOTS

    def _can_relieve(self) -> bool:
        """Return whether there is pressure that rollouts here add to, and the last relief has had its effect."""
        if not self._pressure.sign or self.num_slots <= self._num_least:
            return False
        is_settled = time.monotonic() - self._relieved_at >= RELIEF_SECONDS
        return is_settled and MIN_USE * self.num_slots <= self._count_busy() <= self.num_slots

    async def _apply(self) -> None:
        """Open the slots, but no more than before where agents do not start or memory becomes short meanwhile."""
        num_slots = self.num_slots
        resizing = asyncio.ensure_future(self._resize(num_slots))
        try:
            while not (await asyncio.wait([resizing], timeout=SAMPLE_SECONDS))[0]:
                self._add_sample()
                if self._pressure.sign == NO_MEMORY:
                    self._search.withdraw(self._num_open, NO_MEMORY)
                    return
            await resizing
            self._num_open = num_slots
        except Exception as error:
            self._search.withdraw(self._num_open, NO_AGENTS)
            if not isinstance(error, AgentStartError):
                raise
            log.warning("%s: %s", NO_AGENTS, error)
        finally:
            await cancel_and_wait(resizing)
            self._timer.meter.restart(self._search.cohort_size)
            log.debug("%d slots: %s", self.num_slots, self.reason)


def _read_memory() -> Memory | None:
    memory = host_memory.read_memory()
    return None if memory is None else Memory(*memory)
