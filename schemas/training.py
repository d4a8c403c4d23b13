"""Events about training: what a step made, and of what."""

from typing import Literal

from schemas.base import Event, Identifier, NonNegativeInt, Outcome, PositiveInt, SubjectToken
from schemas.spans import Span


class RolloutDisposition(Event, frozen=True, kw_only=True):
    """What one training step did with one rollout."""

    rollout_id: Identifier
    task_id: Identifier
    attempt: NonNegativeInt
    """0 and no execution: it had not ended."""
    execution_id: str
    outcome: Outcome | Literal[""]
    reward: float | None
    advantage: float
    trained: bool
    exclusion_reason: str = ""
    """Why it was not trained on; empty if it was."""
    tokens: NonNegativeInt
    max_staleness: NonNegativeInt
    """Versions between the one trained and the oldest that made a token of it."""
    batch_index: int = -1
    """Where it stood in the batch; -1: it came into none."""
    call_advantages: tuple[float, ...] = ()
    """Advantage of each of its calls."""


class TrainingStep(Event, frozen=True, kw_only=True):
    """One optimiser step: what went in, what came out."""

    run_id: SubjectToken
    model: SubjectToken
    step: PositiveInt
    version: NonNegativeInt
    """The weight version this step made."""
    epoch: NonNegativeInt
    started_ns: NonNegativeInt
    ended_ns: NonNegativeInt
    rollouts: tuple[RolloutDisposition, ...]
    metrics: dict[str, float]
    batch_sha256: str = ""
    """SHA-256 of the batch: rows and advantages, to the bit."""
    settings: str = ""
    """The learner's settings, JSON: with them the batch can be made again."""
    spans: tuple[Span, ...]
    """One span per rollout trained on, in that rollout's own trace."""
