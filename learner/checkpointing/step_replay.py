"""The steps since a checkpoint, made again: of the same rollouts, so that they lead to the same weights. Pure."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from lightningbus.learner.checkpointing.journal import StepRecord, TrainedGroup
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.rollouts.groups import GroupBuffer, RolloutGroup


class StepReplay:
    """The recorded steps that are not made again yet; it is empty once all are."""

    def __init__(self, steps: Iterable[StepRecord] = ()) -> None:
        self._steps = deque(steps)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> Sequence[StepRecord]:
        """Those steps, in order."""
        return tuple(self._steps)

    def find_members(self) -> dict[str, Collection[str]]:
        """Map each task to the executions its group had when it was trained."""
        return {group.task_id: frozenset(group.execution_ids) for step in self._steps for group in step.groups}

    def is_ready(self, groups: GroupBuffer) -> bool:
        """Return whether all groups of the next step are ready."""
        return {group.task_id for group in self._steps[0].groups} <= {group.task_id for group in groups.ready}

    def take(self, groups: GroupBuffer) -> list[RolloutGroup]:
        """Take the groups of the next step, in their order; none while one of them is not ready."""
        tasks = [group.task_id for group in self._steps[0].groups]

        def choose(ready: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
            by_task = {group.task_id: group for group in ready}
            return [by_task[task] for task in tasks if task in by_task]

        return groups.pop_ready(len(tasks), choose)

    def complete(self, version: int) -> bool:
        """Note that the step to a version is done; return whether it was one of these."""
        is_next = bool(self._steps) and self._steps[0].version == version
        if is_next:
            self._steps.popleft()
        return is_next

    def abandon(self) -> list[TrainedGroup]:
        """Give up the remaining steps; return their groups, which are trained as any other."""
        groups = [group for step in self._steps for group in step.groups]
        self._steps.clear()
        return groups


def describe_step(
    version: int, groups: Iterable[RolloutGroup], find_group: Callable[[str], DispatchedGroup | None]
) -> StepRecord:
    """Record the inputs by which the step to a version can be repeated; ``find_group`` looks up a task's dispatch."""
    return StepRecord(
        version,
        [
            TrainedGroup(group.task_id, [rollout.execution_id for rollout in group.rollouts], find_group(group.task_id))
            for group in groups
        ],
    )
