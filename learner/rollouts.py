"""Span batches into finished rollouts. Pure: any order, duplicates and several attempts give the same result.

The first attempt whose last word arrives, in stream order, is the rollout; what comes later is ignored.
"""

from dataclasses import dataclass, field

from schemas import identity
from schemas.events import ModelCall, Outcome, SpanBatch

MASKED: frozenset[Outcome] = frozenset({"infra", "poisoned", "cancelled"})
"""Not the agent's doing: never a reward."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One finished rollout, ready to be grouped."""

    id: str
    task: str
    sample: int
    samples: int
    attempt: int
    outcome: Outcome
    reward: float | None
    calls: tuple[ModelCall, ...]
    first_sequence: int
    """Stream position of its first batch: replay must not begin later while it is unused."""

    @property
    def root_span_id(self) -> str:
        """Parent of whatever training says about it."""
        return identity.root_span_id(self.id, self.attempt)


@dataclass(slots=True)
class _Attempt:
    batches: dict[int, SpanBatch] = field(default_factory=dict)
    first_sequence: int = 0
    last: int | None = None


class Assembler:
    """Collects batches until an attempt is whole."""

    def __init__(self, ended: set[str] | None = None) -> None:
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        self.ended: set[str] = set(ended or ())
        """Ids of rollouts that have had their last word: the ledger against using one twice."""

    def add(self, batch: SpanBatch, sequence: int) -> Rollout | None:
        """Take a batch at its stream sequence; the rollout if this makes one whole for the first time."""
        if batch.rollout in self.ended:
            return None
        key = (batch.rollout, batch.attempt)
        attempt = self._attempts.setdefault(key, _Attempt(first_sequence=sequence))
        attempt.batches[batch.sequence] = batch
        attempt.first_sequence = min(attempt.first_sequence, sequence)
        if batch.end is not None:
            attempt.last = batch.sequence
        if attempt.last is None or len(attempt.batches) <= attempt.last:
            return None
        return self._finish(batch, attempt)

    def oldest(self) -> int | None:
        """First stream sequence of anything not yet whole; None if nothing is waiting."""
        return min((attempt.first_sequence for attempt in self._attempts.values()), default=None)

    def _finish(self, batch: SpanBatch, attempt: _Attempt) -> Rollout:
        ordered = [attempt.batches[number] for number in range((attempt.last or 0) + 1)]
        end = ordered[-1].end
        assert end is not None
        calls = [span.call for part in ordered for span in part.spans if span.call is not None]
        self.ended.add(batch.rollout)
        for key in [key for key in self._attempts if key[0] == batch.rollout]:
            del self._attempts[key]
        return Rollout(
            id=batch.rollout,
            task=batch.task,
            sample=batch.sample,
            samples=batch.samples,
            attempt=batch.attempt,
            outcome=end.outcome,
            reward=end.reward,
            calls=tuple(sorted(calls, key=lambda call: call.index)),
            first_sequence=attempt.first_sequence,
        )


def reward_of(rollout: Rollout, failed: str) -> float | None:
    """Reward for training, or None: masked. ``failed`` is the setting for rollouts the agent failed."""
    if rollout.outcome == "ok":
        return rollout.reward
    if rollout.outcome in MASKED or failed == "mask":
        return None
    return 0.0
