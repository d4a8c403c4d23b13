"""Number of groups to dispatch so that each is within the staleness bound when it is trained. Pure."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.selection.difficulty import Selection


class DispatchedGroup(msgspec.Struct, kw_only=True):
    """A group that is dispatched and neither trained nor dropped; part of the checkpoint."""

    number: int
    """Groups that were dispatched before it since the run's start; a replacement has the number of what it replaces."""
    replacement: int = 0
    """Number of failed groups of the same task before it."""
    served_version: int | None = None
    """The oldest that nodes served when it was dispatched: no token is of an older one. None: not dispatched yet."""
    is_published: bool = False
    """All its tasks are on the bus."""
    last_task: int = 0
    """Sequence of the last of its tasks in their stream; 0: not known."""
    is_late: bool = False
    """Training has stopped waiting for it, so it will be trained beyond the bound."""
    selection: Selection | None = None
    """The choice of its task; None: the task follows from its number."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Progress of training and sampling, and the allowed distance between them."""

    version: int
    """The one being trained."""
    served: int
    """The oldest that a node serves."""
    max_staleness: int
    groups_per_step: int


def num_admitted_groups(pace: Pace) -> int:
    """Count the groups that may be dispatched and untrained, so that all can be trained within the bound.

    The bound of AReaL (arXiv:2505.24298, section 5.1), counted from the version that nodes serve.
    """
    return max(0, pace.served + pace.max_staleness + 1 - pace.version) * pace.groups_per_step


def find_awaited(
    batch: Container[str], groups: Mapping[str, DispatchedGroup], closed: Container[str], pace: Pace
) -> list[str]:
    """Find tasks whose open group would end up beyond the bound if ``batch`` were trained now, without it.

    Groups of version ``a`` must be trained by the step from version ``a + max_staleness``. So after the step from
    ``v`` there may be ``(a + max_staleness - v) * groups_per_step`` groups of ``a`` or an older version (the test for
    earliest deadline first, Liu and Layland 1973, with steps as time). ``groups`` are all that are dispatched and not
    trained yet, by task; ``closed`` are tasks that wait for no rollout. A group that is beyond the bound already is not
    waited for.
    """
    bound = pace.version - pace.max_staleness
    waiting = [
        (group.served_version, task)
        for task, group in groups.items()
        if group.served_version is not None
        and task not in batch
        and (task in closed or not (group.is_late or group.served_version < bound))
    ]
    awaited, open_tasks = list[str](), list[str]()
    for count, (version, task) in enumerate(sorted(waiting), 1):
        if task not in closed:
            open_tasks.append(task)
        if count > (version - bound) * pace.groups_per_step:
            awaited += open_tasks
            open_tasks = []
    return awaited


def order_by_deadline(
    ready: Iterable[RolloutGroup], groups: Mapping[str, DispatchedGroup], pace: Pace
) -> list[RolloutGroup]:
    """Order ready groups oldest first, but those that this step must train to be within the bound before late ones.

    An abandoned group is late whenever it is trained, so it takes no place that another one needs. ``groups`` are all
    that are dispatched and not trained yet, by task.
    """
    bound = pace.version - pace.max_staleness
    on_time = {
        task: group.served_version
        for task, group in groups.items()
        if group.served_version is not None and group.served_version >= bound and not group.is_late
    }
    excess = (
        max(0, count - (version - bound) * pace.groups_per_step)
        for count, version in enumerate(sorted(on_time.values()), 1)
    )
    order = oldest_first(ready, groups)
    urgent = [group for group in order if group.task_id in on_time][: max(excess, default=0)]
    urgent_tasks = {group.task_id for group in urgent}
    return [*urgent, *(group for group in order if group.task_id not in urgent_tasks)]


def oldest_first(ready: Iterable[RolloutGroup], dispatched: Iterable[str]) -> list[RolloutGroup]:
    """Order ready groups by dispatch; those that others dispatched come first, as they became ready."""
    order = {task: place for place, task in enumerate(dispatched)}
    return sorted(ready, key=lambda group: order.get(group.task_id, -1))
