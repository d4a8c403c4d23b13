"""Training tasks onto the bus, as many as the staleness bound admits."""

import asyncio
import math
import random
from collections.abc import Sequence

from bus import Bus
from bus.tasks import Problem
from learner.settings import LearnerSettings
from learner.staleness import admitted_groups
from schemas.events import Task


def group_of(problems: Sequence[Problem], place: int, settings: LearnerSettings) -> list[Task]:
    """The tasks of the ``place``-th group of a run: every problem once per pass, each pass shuffled anew.

    Deterministic, so that a learner that starts again publishes the same tasks under the same message ids.
    """
    number, at = divmod(place, len(problems))
    order = list(range(len(problems)))
    random.Random(f"{settings.seed}:{number}").shuffle(order)
    problem = problems[order[at]]
    return [
        Task(
            id=f"{problem.id}@{settings.run}-p{number}",
            run=settings.run,
            agent=settings.agent,
            input=problem.input,
            sample=sample,
            samples=settings.samples,
            deadline=settings.deadline,
            max_attempts=settings.max_attempts,
            model=settings.model,
            sampling=settings.sampling,
        )
        for sample in range(settings.samples)
    ]


class Dispatcher:
    """Publishes groups while the bound admits more; `admit` is called whenever it may have moved."""

    def __init__(self, bus: Bus, problems: Sequence[Problem], settings: LearnerSettings, dispatched: int) -> None:
        self._bus, self._problems, self._settings = bus, problems, settings
        self.dispatched = dispatched
        self._ordered = "ready_first" not in settings.off_policy
        known = range(dispatched) if self._ordered else ()
        self.order = [group_of(problems, place, settings)[0].id for place in known]
        """Tasks in the order they were dispatched in, where groups are taken in that order."""
        self._limit = dispatched
        self._moved = asyncio.Event()

    def admit(self, step: int, dropped: int) -> None:
        """``step`` optimiser steps are made and ``dropped`` groups came to nothing; without problems, nothing to do."""
        if not self._problems:
            return
        settings = self._settings
        wanted = settings.steps * settings.groups_per_step
        if "wait" in settings.off_policy:
            admitted = admitted_groups(step, settings.max_staleness, settings.groups_per_step, settings.publish_every)
            wanted = min(wanted, admitted)
        self._limit = wanted + dropped
        self._moved.set()

    async def run(self) -> None:
        """Publish for ever; a full bus is waited for."""
        while True:
            while self.dispatched < self._limit:
                tasks = group_of(self._problems, self.dispatched, self._settings)
                await self._bus.publish_tasks(tasks, timeout=math.inf)
                self.dispatched += 1
                self.order += [tasks[0].id] if self._ordered else []
            self._moved.clear()
            await self._moved.wait()
