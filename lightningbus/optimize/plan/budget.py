"""How many rollouts may still be published. Pure.

Two numbers count. What was *published*, in this life or an earlier one, never exceeds the limit. What this life has
*asked* for decides whether an iteration begins: a restarted optimiser asks again for what it had asked for before, in
the same order, so it decides as it did then.
"""

from collections.abc import Iterable, Sequence


class BudgetSpentError(Exception):
    """More rollouts would have to be published than the budget has left."""


class Budget:
    """The rollouts of one optimisation, by id."""

    def __init__(self, limit: int, published: Iterable[str] = ()) -> None:
        """``published``: ids of earlier lives."""
        self.limit = limit
        self.published = set(published)
        self._requested: set[str] = set()

    @property
    def num_requested(self) -> int:
        """Different rollouts that this life has asked for."""
        return len(self._requested)

    def has_room(self, num_rollouts: int, reserved: int = 0) -> bool:
        """Whether so many more may be asked for, with ``reserved`` kept for later."""
        return len(self._requested) + num_rollouts + reserved <= self.limit

    def admit(self, rollout_ids: Sequence[str]) -> set[str]:
        """Ask for rollouts; returns those that have to be published, which count as published from now on.

        Raises `BudgetSpentError`, and admits none, where they are too many.
        """
        missing = set(rollout_ids) - self.published
        if len(self.published) + len(missing) > self.limit:
            raise BudgetSpentError(f"{len(missing)} more rollouts would exceed the budget of {self.limit}")
        self._requested.update(rollout_ids)
        self.published |= missing
        return missing
