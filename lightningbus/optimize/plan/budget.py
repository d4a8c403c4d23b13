"""Budget of rollouts. Pure.

Two numbers count. The rollouts *published*, before and after a restart, never exceed the limit. The rollouts
*requested* since the restart decide whether an iteration begins: a restarted optimiser requests the same ones in the
same order, so it decides as it did before.
"""

from collections.abc import Iterable, Sequence


class BudgetSpentError(Exception):
    """More rollouts would have to be published than the budget has left."""


class Budget:
    """The rollouts of one optimisation, by id."""

    def __init__(self, limit: int, published: Iterable[str] = ()) -> None:
        """Start with ``published``, the ids of rollouts from before a restart."""
        self.limit = limit
        self.published = set(published)
        self._requested: set[str] = set()

    @property
    def num_requested(self) -> int:
        """Number of different rollouts requested since the (re)start."""
        return len(self._requested)

    def has_room(self, num_rollouts: int, reserved: int = 0) -> bool:
        """Return whether ``num_rollouts`` more may be requested, with ``reserved`` kept for later."""
        return len(self._requested) + num_rollouts + reserved <= self.limit

    def admit(self, rollout_ids: Sequence[str]) -> set[str]:
        """Request rollouts; return the ids that must still be published, which count as published from now on.

        Raises `BudgetSpentError`, and admits none, where they are too many.
        """
        missing = set(rollout_ids) - self.published
        if len(self.published) + len(missing) > self.limit:
            raise BudgetSpentError(f"{len(missing)} more rollouts would exceed the budget of {self.limit}")
        self._requested.update(rollout_ids)
        self.published |= missing
        return missing
