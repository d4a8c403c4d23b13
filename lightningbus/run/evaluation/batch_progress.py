"""Progress of a batch: which rollouts have ended, and the time at which the rest is given up. Pure."""

from collections.abc import Collection, Iterable


class BatchProgress:
    """The rollouts that have ended, and the time at which one more must have."""

    def __init__(self, rollout_ids: Collection[str], patience: float, now: float) -> None:
        """``patience``: seconds within which one rollout or more must end."""
        self._rollout_ids, self._patience = frozenset(rollout_ids), patience
        self._ended: frozenset[str] = frozenset()
        self.restart(now)

    def restart(self, now: float) -> None:
        """Begin the wait anew."""
        self.gives_up_at = now + self._patience

    def update(self, ended: Iterable[str], now: float) -> None:
        """Note which rollouts have ended, others than the batch's left out; the first news of one restart the wait."""
        before = self._ended
        self._ended |= self._rollout_ids.intersection(ended)
        if self._ended != before:
            self.restart(now)

    @property
    def num_ended(self) -> int:
        """Rollouts of the batch that have ended."""
        return len(self._ended)

    @property
    def missing(self) -> frozenset[str]:
        """Ids of the rollouts that have not ended."""
        return self._rollout_ids - self._ended
