"""Training tasks onto the bus, as many as the staleness bound admits."""

import asyncio
import math
from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from bus.client import Bus
from bus.task_file import TaskInput
from bus.task_publisher import TaskPublisher
from learner.rollouts.task_order import TaskOrder
from learner.settings.learner import LearnerSettings
from schemas.tasks import Task


def task_id(problem: TaskInput, number: int, settings: LearnerSettings) -> str:
    """What a problem's task is called in the pass of that number."""
    return f"{problem.id}@{settings.run}-p{number}"


def tasks_of_group(problem: TaskInput, number: int, settings: LearnerSettings) -> list[Task]:
    """The tasks of a problem's group in the pass of that number.

    Deterministic, so that a learner that starts again publishes the same tasks under the same message ids.
    """
    return [
        Task(
            id=task_id(problem, number, settings),
            run_id=settings.run,
            agent=settings.agent,
            input=problem.input,
            sample_index=sample,
            group_size=settings.group_size,
            deadline=settings.rollout_timeout_seconds,
            max_attempts=settings.max_attempts,
            model=settings.model,
            sampling_params=settings.sampling_params,
        )
        for sample in range(settings.group_size)
    ]


class Dispatcher:
    """Publishes groups while the bound admits more; `admit` is called whenever it may have moved."""

    def __init__(self, bus: Bus, problems: Sequence[TaskInput], settings: LearnerSettings, dispatched: int) -> None:
        self._bus, self._problems, self._settings = bus, problems, settings
        self._task_order = TaskOrder(len(problems), settings.seed)
        self._group_numbers: dict[str, int] = {}
        self._lost: deque[tuple[int, Collection[int], str]] = deque()
        self._limit = dispatched
        self._nonce = ""  # of the last loss: the broker may still know ids of tasks that nobody has any more
        self._limit_changed = asyncio.Event()
        self.dispatched = dispatched
        """Groups published since the run's start: the number of the next one."""

    async def restore(self, group_numbers: Iterable[int]) -> None:
        """Restore the numbers of the groups that were dispatched before and are not settled."""
        for group_number in group_numbers:
            pass_number, index = await self._task_order.seek(group_number)
            self._group_numbers[task_id(self._problems[index], pass_number, self._settings)] = group_number

    @property
    def outstanding(self) -> list[int]:
        """The group_numbers of the groups that are dispatched and not settled, in that order."""
        return sorted(self._group_numbers.values())

    @property
    def is_behind(self) -> bool:
        """Whether tasks that the bus lost are not published again yet."""
        return bool(self._lost)

    @property
    def dispatch_order(self) -> Collection[str]:
        """The tasks of those groups, where groups are taken in the order in which they were dispatched; else none."""
        return self._group_numbers.keys() if self._settings.staleness.order == "dispatch" else ()

    def release(self, tasks: Iterable[str]) -> None:
        """These groups are trained on, or came to nothing."""
        for task in tasks:
            self._group_numbers.pop(task, None)

    def update_limit(self, step: int, dropped: int) -> None:
        """``step`` optimiser steps are made and ``dropped`` groups came to nothing; without problems, nothing to do."""
        if not self._problems:
            return
        settings = self._settings
        wanted = settings.max_steps * settings.groups_per_step
        if settings.staleness.admission == "bounded":
            admitted = max_dispatched_groups(
                step, settings.max_staleness, settings.groups_per_step, settings.weight_sync_interval
            )
            wanted = min(wanted, admitted)
        self._limit = wanted + dropped
        self._limit_changed.set()

    def dispatch_again(self, ended: Mapping[str, Container[int]], closed: Container[str], nonce: str) -> int:
        """The bus lost messages: whatever is outstanding and has not ended is published once more.

        ``ended`` are samples by task, ``closed`` tasks that wait for none. ``nonce`` is the same only for the same
        loss: the broker may still know the message ids of what it lost. Returns the number of tasks.
        """
        count = 0
        self._nonce = nonce
        for task, group_number in self._group_numbers.items():
            samples = [sample for sample in range(self._settings.group_size) if sample not in ended.get(task, ())]
            if samples and task not in closed:
                self._lost.append((group_number, samples, nonce))
                count += len(samples)
        self._limit_changed.set()
        return count

    async def run(self) -> None:
        """Publish for ever; a full bus is waited for."""
        while True:
            self._limit_changed.clear()
            if self._lost:
                group_number, samples, nonce = self._lost[0]
                tasks = await self._group(group_number)
                lost_tasks = [tasks[sample] for sample in samples]
                await TaskPublisher(self._bus).publish_tasks(lost_tasks, timeout=math.inf, nonce=nonce)
                self._lost.popleft()
            elif self.dispatched < self._limit:
                tasks = await self._group(self.dispatched)
                self._group_numbers[tasks[0].id] = self.dispatched  # before: what is lost on its way is outstanding too
                await TaskPublisher(self._bus).publish_tasks(tasks, timeout=math.inf, nonce=self._nonce)
                self.dispatched += 1
            else:
                await self._limit_changed.wait()

    async def _group(self, group_number: int) -> list[Task]:
        pass_number, index = await self._task_order.seek(group_number)
        return tasks_of_group(self._problems[index], pass_number, self._settings)


def max_dispatched_groups(version: int, max_staleness: int, groups_per_step: int, weight_sync_interval: int = 1) -> int:
    """How many groups may have been dispatched since the start while step ``version`` is the one to come.

    The bound of AReaL (arXiv:2505.24298, section 5.1) with a group as its unit: what is under way is never more than
    the steps to come may use before it is ``max_staleness`` versions old. The served version is
    up to ``weight_sync_interval`` - 1 steps older than the trained one.
    """
    return (version + max_staleness - (weight_sync_interval - 1) + 1) * groups_per_step
