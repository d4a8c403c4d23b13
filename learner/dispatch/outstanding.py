"""The groups that are dispatched and neither trained nor dropped, in the order of dispatch. Pure."""

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from operator import itemgetter

from msgspec.structs import replace

from lightningbus.learner.dispatch.pacing import DispatchedGroup


class OutstandingGroups:
    """Groups by their task; one of which no task is on the bus has no served version."""

    def __init__(self) -> None:
        self.by_task: dict[str, DispatchedGroup] = {}
        self.surplus: dict[str, None] = {}
        """Tasks that are left to other learners of the run, oldest first."""
        self.batch: frozenset[str] = frozenset()
        """Tasks that are being trained: they are not left to other learners."""

    def copies(self, without: Container[str] = ()) -> list[DispatchedGroup]:
        """Copy the groups, except those of some tasks."""
        return [replace(group) for task, group in self.by_task.items() if task not in without]

    def copy(self, task: str) -> DispatchedGroup | None:
        """Copy the group of a task; None: there is none."""
        return replace(self.by_task[task]) if task in self.by_task else None

    @property
    def num_started(self) -> int:
        """Groups of which tasks are on the bus, or on their way there."""
        return sum(group.served_version is not None for group in self.by_task.values())

    @property
    def is_interrupted(self) -> bool:
        """Whether tasks of a group were on their way to the bus when the learner ended: they are not waited for."""
        return any(group.served_version is not None and not group.is_published for group in self.by_task.values())

    def is_any_unpublished(self, tasks: Iterable[str]) -> bool:
        """Return whether the group of one of these tasks is outstanding and not all on the bus."""
        return any(task in self.by_task and not self.by_task[task].is_published for task in tasks)

    def find_unpublished(self, is_paused: Callable[[int], bool]) -> DispatchedGroup | None:
        """Find the oldest group whose tasks are not all on the bus, a partly published one first; None: none.

        ``is_paused`` tells by a group's number whether the group must wait; a partly published one does not.
        """
        unpublished = [
            group
            for group in self.by_task.values()
            if not group.is_published and (group.served_version is not None or not is_paused(group.number))
        ]
        return min(unpublished, key=lambda group: group.served_version is None, default=None)

    def remove(self, tasks: Iterable[str]) -> None:
        """Remove the groups of trained or dropped tasks."""
        for task in tasks:
            self.by_task.pop(task, None)

    def leave_beyond(self, num_admitted: Callable[[int], int], limit: int) -> int:
        """Leave started groups to other learners until the rest can be trained within the bound, the oldest first.

        ``num_admitted`` is how many groups of a served version or an older one that are; ``limit`` is how many may be
        left. Returns how many were.
        """
        kept: deque[str] = deque()
        beyond: list[str] = []
        num_kept = 0
        started = [(group.served_version, task) for task, group in self.by_task.items()]
        in_order = sorted(((version, task) for version, task in started if version is not None), key=itemgetter(0))
        for version, task in in_order:
            num_kept += 1
            if task not in self.batch:
                kept.append(task)
            if num_kept > num_admitted(version) and kept:
                beyond.append(kept.popleft())
                num_kept -= 1
        self._leave(beyond[:limit])
        return min(len(beyond), limit)

    def leave_open(self, closed: Container[str]) -> int:
        """Leave every group to other learners that is on the bus and not ``closed``; returns how many these are."""
        open_tasks = [task for task, group in self.by_task.items() if group.is_published and task not in closed]
        self._leave(open_tasks)
        return len(open_tasks)

    def take_surplus(self) -> list[str]:
        """Return the tasks of `surplus` and empty it."""
        taken, self.surplus = list(self.surplus), {}
        return taken

    def missing_samples(
        self, find_group_size: Callable[[str], int], ended: Mapping[str, Container[int]], closed: Container[str]
    ) -> dict[str, Collection[int]]:
        """List by task the samples that are published or being published and have not ``ended``."""
        missing = {
            task: [sample for sample in range(find_group_size(task)) if sample not in ended.get(task, ())]
            for task, group in self.by_task.items()
            if group.served_version is not None and task not in closed
        }
        return {task: samples for task, samples in missing.items() if samples}

    def take_back(self, tasks: Container[str], num_admitted: int) -> list[str]:
        """Make published groups of ``tasks`` unpublished until no more than ``num_admitted`` are started, newest first.

        Returns the tasks of these groups.
        """
        published = [task for task, group in self.by_task.items() if group.is_published and task in tasks]
        taken = published[::-1][: max(0, self.num_started - num_admitted)]
        for task in taken:
            group = self.by_task[task]
            group.served_version, group.is_published, group.last_task = None, False, 0
        return taken

    def _leave(self, tasks: Collection[str]) -> None:
        self.remove(tasks)
        self.surplus |= dict.fromkeys(tasks)
