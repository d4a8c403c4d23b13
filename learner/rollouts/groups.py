"""Rollouts of one task into GRPO's group. Pure; time is passed in."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.schemas.trajectory.attempt_selection import Resolution, supersedes

MAX_CLOSED_GROUPS = 20_000
"""Number of closed groups that are remembered. A late rollout of a forgotten one opens a new group, which expires."""


@dataclass(slots=True, eq=False)
class RolloutGroup:
    """The rollouts of one task that have ended so far, by id."""

    task_id: str
    group_size: int
    last_ended_at: float
    """Time at which a rollout of it ended last, in the caller's clock."""
    members: dict[str, Rollout] = field(default_factory=dict)

    @property
    def rollouts(self) -> list[Rollout]:
        """Its rollouts, in the order of their samples."""
        return sorted(self.members.values(), key=lambda rollout: rollout.sample_index)

    @property
    def complete(self) -> bool:
        """Whether every sample has ended."""
        return len(self.members) >= self.group_size


class GroupBuffer:
    """Incomplete groups, and those ready to be trained on, oldest first.

    ``is_valid`` decides whether a rollout has a reward to train on. A group of which no rollout has ended for
    ``seconds`` is trained as it is; one with fewer than ``min_valid`` valid rollouts goes to `rejected`.
    """

    def __init__(
        self, seconds: float, is_valid: Callable[[Rollout], bool], closed: Iterable[str] = (), min_valid: int = 2
    ) -> None:
        self._min_valid = min_valid
        self._seconds = seconds
        self._is_valid = is_valid
        self._open: dict[str, RolloutGroup] = {}
        self.ready: list[RolloutGroup] = []
        self.rejected: list[RolloutGroup] = []
        self.missing_samples: list[tuple[str, int]] = []
        """(task, sample) of rollouts that had not ended when their group was closed."""
        self.late_attempts: list[Rollout] = []
        """Attempts that ended when their rollout had its last word, or their group was closed."""
        self.surplus_attempts: list[Rollout] = []
        """Attempts of groups that were dropped; see `drop`."""
        self.closed: dict[str, None] = dict.fromkeys(closed)
        """Tasks whose group is closed, oldest first."""
        self.members_at_close: Mapping[str, Collection[str]] = {}
        """Executions by task: a group of just these is closed, though others are missing."""
        self._dropped: set[str] = set()

    def add(self, rollout: Rollout, now: float) -> None:
        """Add an attempt that has ended."""
        if rollout.resolution == Resolution.RETRIED or any(
            rollout.execution_id == late.execution_id for late in self.late_attempts
        ):
            return
        if rollout.task_id in self.closed:
            if all(
                rollout.execution_id != pending.execution_id for pending in self.pending_rollouts()
            ):  # otherwise it was delivered twice
                is_surplus = rollout.task_id in self._dropped
                (self.surplus_attempts if is_surplus else self.late_attempts).append(rollout)
            return
        group = self._open.setdefault(rollout.task_id, RolloutGroup(rollout.task_id, rollout.group_size, now))
        group.last_ended_at = now
        before = group.members.get(rollout.id)
        if before is not None and before.execution_id == rollout.execution_id:
            return  # delivered twice
        if supersedes(rollout.resolution, before.resolution if before else None):
            group.members[rollout.id] = rollout
            self.late_attempts += [before] if before else []
        else:
            self.late_attempts.append(rollout)
        if group.complete or self._has_members_at_close(group):
            self._close(group)

    def _has_members_at_close(self, group: RolloutGroup) -> bool:
        wanted = self.members_at_close.get(group.task_id)
        return wanted is not None and {rollout.execution_id for rollout in group.members.values()} == wanted

    def drop(self, tasks: Iterable[str]) -> None:
        """Do not train on these tasks: what has ended of them, and what ends yet, goes to `surplus_attempts`."""
        for task in tasks:
            group = self._open.pop(task, None) or next((group for group in self.ready if group.task_id == task), None)
            if group is not None:
                self.ready = [other for other in self.ready if other is not group]
                self.surplus_attempts += group.rollouts
            if task not in self.closed or group is not None:
                self._dropped.add(task)
            self._add_closed(task)

    def expire(self, now: float) -> float | None:
        """Close the groups whose time is up; seconds until the next one's is, None if no group is open."""
        for group in list(self._open.values()):
            if now - group.last_ended_at >= self._seconds:
                self._close(group)
        return min((group.last_ended_at + self._seconds - now for group in self._open.values()), default=None)

    def pop_ready(
        self, count: int, choose: Callable[[Sequence[RolloutGroup]], Sequence[RolloutGroup]] = list
    ) -> list[RolloutGroup]:
        """Take the first ``count`` ready groups that ``choose`` lets through; none if there are fewer.

        Without it they are taken in the order in which they became ready.
        """
        taken = list(choose(self.ready))[:count]
        if len(taken) < count:
            return []
        self.ready = [group for group in self.ready if group not in taken]
        return taken

    def take(self, group: RolloutGroup) -> int:
        """Take a ready group; return its place."""
        place = self.ready.index(group)
        self.ready = [*self.ready[:place], *self.ready[place + 1 :]]
        return place

    def insert(self, group: RolloutGroup, place: int) -> None:
        """Put a group that was taken and not trained back to its place."""
        self.ready = [*self.ready[:place], group, *self.ready[place:]]

    def requeue(self, groups: Iterable[RolloutGroup]) -> None:
        """Put groups that were taken and not trained back to the front."""
        self.ready = [*groups, *self.ready]

    def pending_rollouts(self) -> Iterator[Rollout]:
        """Yield every attempt not yet handed out."""
        for group in (*self._open.values(), *self.ready, *self.rejected):
            yield from group.members.values()
        yield from self.late_attempts
        yield from self.surplus_attempts

    def ended_rollouts(self) -> dict[str, set[int]]:
        """List the ended samples by task, for the groups that wait for more."""
        return {
            group.task_id: {rollout.sample_index for rollout in group.members.values()} for group in self._open.values()
        }

    def released_tasks(self) -> list[str]:
        """List tasks whose group is closed and has been handed out, oldest first."""
        pending = {group.task_id for group in (*self.ready, *self.rejected)}
        return [task for task in self.closed if task not in pending]

    @property
    def waiting(self) -> int:
        """Groups that have begun and are not ready."""
        return len(self._open)

    def _close(self, group: RolloutGroup) -> None:
        del self._open[group.task_id]
        self._add_closed(group.task_id)
        ended = {rollout.sample_index for rollout in group.members.values()}
        self.missing_samples += [(group.task_id, sample) for sample in range(group.group_size) if sample not in ended]
        usable = sum(map(self._is_valid, group.members.values())) >= self._min_valid
        (self.ready if usable else self.rejected).append(group)

    def _add_closed(self, task: str) -> None:
        self.closed[task] = None
        while len(self.closed) > MAX_CLOSED_GROUPS:
            oldest = next(iter(self.closed))
            del self.closed[oldest]
            self._dropped.discard(oldest)


def in_dispatch_order(
    ready: Sequence[RolloutGroup], dispatched: Iterable[str], closed: Collection[str]
) -> list[RolloutGroup]:
    """Select the ready groups that have no earlier group to wait for, in dispatch order.

    ``dispatched`` are tasks in their order, ``closed`` those whose group is finished.
    """
    at = {group.task_id: group for group in ready}
    order: list[RolloutGroup] = []
    for task in dispatched:
        if task not in closed:
            break
        if task in at:
            order.append(at.pop(task))
    return order
