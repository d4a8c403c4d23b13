"""A runner with a simulated machine: rollouts run at full speed up to a knee, and share the machine beyond it."""

import heapq
import random

from lightningbus.runners.concurrency.cohort_meter import CohortMeter
from lightningbus.runners.concurrency.search import MAX_SLOTS, SlotSearch


class SimulatedRunner:
    """Rollouts that take a second each on average, by a lognormal distribution, while no more than ``knee`` run."""

    def __init__(self, knee: float, sigma: float, seed: int) -> None:
        self.knee, self._sigma, self._random = knee, sigma, random.Random(seed)
        self.search, self.meter = SlotSearch(), CohortMeter()
        self.now, self.num_ended = 0.0, 0
        self.num_tasks = 10**9
        """Most rollouts that run at once because there are no more tasks."""
        self.room = MAX_SLOTS
        """Slots that there is room for in all."""
        self._work = 0.0  # that each rollout has done which runs since the beginning
        self._running: list[tuple[float, int]] = []

    def run_cohort(self) -> None:
        """Run until the next measurement is there, and decide by it."""
        self.meter.restart(self.search.cohort_size)
        while (cohort := self.meter.cohort) is None:
            while len(self._running) < min(self.search.slots, self.num_tasks):
                work = self._random.lognormvariate(-(self._sigma**2) / 2, self._sigma)
                heapq.heappush(self._running, (self._work + work, self.meter.begin(self.now)))
            speed = min(1.0, self.knee / len(self._running))
            done, number = heapq.heappop(self._running)
            self.now += (done - self._work) / speed
            self._work = done
            self.meter.end(number, self.now, is_measured=True)
            self.num_ended += 1
        self.search.decide(cohort, max(0, self.room - self.search.slots), "no room")

    def slots_of(self, num_cohorts: int) -> list[int]:
        """Run so many cohorts; return the slots of each."""
        slots = []
        for _ in range(num_cohorts):
            slots.append(self.search.slots)
            self.run_cohort()
        return slots
