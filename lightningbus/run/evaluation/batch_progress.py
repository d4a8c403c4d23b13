"""Progress of a batch: its rollouts that have ended, and the time at which the rest is given up. Pure."""

from collections.abc import Collection


class BatchProgress:
    """The rollouts that have ended, and the time at which one more must have.

    A large batch has many ids, so they are read seldom: first, and when enough rollouts have ended that all of the
    batch may have. In between a count is enough.
    """

    def __init__(self, rollout_ids: Collection[str], patience: float, now: float) -> None:
        """``patience``: seconds within which one rollout or more must end."""
        self._rollout_ids, self._patience = frozenset(rollout_ids), patience
        self._ended: frozenset[str] = frozenset()
        self._num_read = self._num_new = 0
        self.restart(now)

    def restart(self, now: float) -> None:
        """Begin the wait anew."""
        self.gives_up_at = now + self._patience

    def update(self, ended: Collection[str], now: float) -> None:
        """Note the ids of all rollouts that have ended, others than the batch's among them; news restart the wait."""
        before = self.num_ended
        self._ended = self._rollout_ids.intersection(ended)
        self._num_read, self._num_new = len(ended), 0
        if self.num_ended > before:
            self.restart(now)

    def count(self, num_ended: int, now: float) -> bool:
        """Note how many rollouts have ended, others among them; return whether all of the batch may have.

        More than at the last call restart the wait.
        """
        num_new = num_ended - self._num_read
        if num_new > self._num_new:
            self._num_new = num_new
            self.restart(now)
        return num_new >= len(self.missing)

    @property
    def num_ended(self) -> int:
        """Rollouts of the batch that have ended, as far as a count tells."""
        return min(len(self._ended) + self._num_new, len(self._rollout_ids))

    @property
    def missing(self) -> frozenset[str]:
        """Ids of the rollouts that had not ended when ids were read."""
        return self._rollout_ids - self._ended
