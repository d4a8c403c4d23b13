"""Rollouts of one task into GRPO's group. Pure; time is passed in."""

from dataclasses import dataclass, field

from learner.rollouts import Rollout


@dataclass(slots=True)
class Group:
    """The rollouts of one task that have ended so far."""

    task: str
    samples: int
    since: float
    """When its first rollout ended, in the caller's clock."""
    rollouts: list[Rollout] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every sample has ended."""
        return len(self.rollouts) >= self.samples


class Groups:
    """Groups in the making, and those ready to be trained on, oldest first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._open: dict[str, Group] = {}
        self.ready: list[Group] = []

    def add(self, rollout: Rollout, now: float) -> None:
        """A rollout has ended."""
        group = self._open.setdefault(rollout.task, Group(rollout.task, rollout.samples, now))
        group.rollouts.append(rollout)
        if group.complete:
            self.ready.append(self._open.pop(rollout.task))

    def expire(self, now: float) -> None:
        """A group whose last rollouts do not come is trained on as it is: one lost sample never stops training."""
        for task in [task for task, group in self._open.items() if now - group.since >= self._seconds]:
            self.ready.append(self._open.pop(task))

    def take(self, count: int) -> list[Group]:
        """The ``count`` groups that have been ready longest; none if there are fewer."""
        if len(self.ready) < count:
            return []
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken

    def oldest(self) -> int | None:
        """First stream sequence of any rollout held; None if nothing is held."""
        held = [*self._open.values(), *self.ready]
        return min((rollout.first_sequence for group in held for rollout in group.rollouts), default=None)

    @property
    def waiting(self) -> int:
        """Groups that have begun and are not ready."""
        return len(self._open)
