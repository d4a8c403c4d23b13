"""Rollouts of one task into GRPO's group. Pure; time is passed in."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from learner.rollouts import Rollout

SMALLEST_GROUP = 2
"""Valid rollouts a group needs: below it GRPO has nothing to compare."""


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
    """Groups in the making, and those ready to be trained on, oldest first.

    ``is_valid`` says whether a rollout has a reward to train on. A group whose last rollouts do not come within
    ``seconds`` is trained on as it is; one with fewer than two valid rollouts is put aside in `unusable`.
    """

    def __init__(self, seconds: float, is_valid: Callable[[Rollout], bool], closed: Iterable[str] = ()) -> None:
        self._seconds = seconds
        self._is_valid = is_valid
        self._open: dict[str, Group] = {}
        self.ready: list[Group] = []
        self.unusable: list[Group] = []
        self.late: list[Rollout] = []
        """Rollouts that ended after their group had been closed without them."""
        self.closed: set[str] = set(closed)
        """Tasks whose group was closed before every sample had ended."""

    def add(self, rollout: Rollout, now: float) -> None:
        """A rollout has ended."""
        if rollout.task in self.closed:
            self.late.append(rollout)
            return
        group = self._open.setdefault(rollout.task, Group(rollout.task, rollout.samples, now))
        group.rollouts.append(rollout)
        if group.complete:
            self._close(group)

    def expire(self, now: float) -> float | None:
        """Close the groups whose time is up; seconds until the next one's is, None if no group is open."""
        for group in list(self._open.values()):
            if now - group.since >= self._seconds:
                self.closed.add(group.task)
                self._close(group)
        return min((group.since + self._seconds - now for group in self._open.values()), default=None)

    def take(self, count: int) -> list[Group]:
        """The ``count`` groups that have been ready longest; none if there are fewer."""
        if len(self.ready) < count:
            return []
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken

    def held(self) -> Iterator[Rollout]:
        """Every rollout not yet handed out."""
        for group in (*self._open.values(), *self.ready, *self.unusable):
            yield from group.rollouts
        yield from self.late

    @property
    def waiting(self) -> int:
        """Groups that have begun and are not ready."""
        return len(self._open)

    def _close(self, group: Group) -> None:
        del self._open[group.task]
        usable = sum(map(self._is_valid, group.rollouts)) >= SMALLEST_GROUP
        (self.ready if usable else self.unusable).append(group)
