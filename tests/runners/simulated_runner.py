"""A runner with a simulated machine: rollouts run at full speed up to a knee, and share the machine beyond it."""

import heapq
import math
import random

from lightningbus.runners.concurrency.cohort_meter import CohortMeter
from lightningbus.runners.concurrency.search import MAX_SLOTS, SlotSearch


class SimulatedRunner:
    """Rollouts that take a second each on average, by a lognormal distribution, while no more than ``knee`` run.

    A share of them, ``stuck``, does nothing until a deadline of ``deadline`` seconds at full speed.
    """

    def __init__(self, knee: float, sigma: float, seed: int, stuck: float = 0.0, deadline: float = math.inf) -> None:
        self.knee, self._sigma, self._random = knee, sigma, random.Random(seed)
        self._stuck, self._deadline = stuck, deadline
        self.search, self.meter = SlotSearch(), CohortMeter()
        self.now, self.num_ended = 0.0, 0
        self.num_tasks = 10**9
        """Most rollouts that run at once because there are no more tasks."""
        self.room = MAX_SLOTS
        """Slots that there is room for in all."""
        self._work = 0.0  # that each rollout has done which runs since the beginning
        self._running: list[tuple[float, int, bool]] = []

    def run_cohort(self) -> None:
        """Run until the next measurement is there, and decide by it."""
        self.meter.restart(self.search.cohort_size)
        while (cohort := self.meter.measure(self.now)) is None:
            while len(self._running) < min(self.search.num_slots, self.num_tasks):
                work = self._random.lognormvariate(-(self._sigma**2) / 2, self._sigma)
                is_stuck = self._random.random() < self._stuck
                done = self._work + (self._deadline if is_stuck else work)
                heapq.heappush(self._running, (done, self.meter.begin(self.now), is_stuck))
            speed = min(1.0, self.knee / len(self._running))
            done, number, is_stuck = heapq.heappop(self._running)
            self.now += (done - self._work) / speed
            self._work = done
            self.meter.end(number, self.now, "cut off" if is_stuck else "whole")
            self.num_ended += 1
        self.search.decide(cohort, max(0, self.room - self.search.num_slots), "no room")

    def slots_of(self, num_cohorts: int) -> list[int]:
        """Run so many cohorts; return the slots of each."""
        slots = []
        for _ in range(num_cohorts):
            slots.append(self.search.num_slots)
            self.run_cohort()
        return slots
