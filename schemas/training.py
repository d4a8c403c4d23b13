"""Events about training steps: their rollouts and their results."""

from typing import Annotated, Literal

from msgspec import Meta, field

from lightningbus.schemas.base import (
    MAX_POLICIES,
    Event,
    Identifier,
    NonNegativeFloat,
    NonNegativeInt,
    Outcome,
    PositiveInt,
    SubjectToken,
)
from lightningbus.schemas.spans import Span


class RolloutDisposition(Event, frozen=True, kw_only=True):
    """Use of one rollout by one training step."""

    rollout_id: Identifier
    task_id: Identifier
    attempt: NonNegativeInt
    """0 with an empty ``execution_id``: it had not ended."""
    execution_id: str
    outcome: Outcome | Literal[""]
    reward: float | None
    advantage: float
    trained: bool
    exclusion_reason: str = ""
    """Empty if it was trained on."""
    tokens: NonNegativeInt
    max_staleness: NonNegativeInt
    """Versions between the one trained and the oldest that sampled a token of it."""
    batch_index: int = -1
    """Position in the batch; -1: not in it."""
    call_advantages: tuple[float, ...] = ()
    """Advantage of each of its calls."""
    call_roles: tuple[str, ...] = ()
    """Role of each of its calls."""
    call_tokens: tuple[NonNegativeInt, ...] = ()
    """Tokens trained of each of its calls; 0 for calls of other models."""
    version_tokens: tuple[tuple[NonNegativeInt, NonNegativeInt], ...] = ()
    """Each weight version that sampled trained tokens, and how many."""


class TrainingStep(Event, frozen=True, kw_only=True):
    """One optimiser step, with its rollouts and metrics."""

    run_id: SubjectToken
    model: SubjectToken
    step: PositiveInt
    version: NonNegativeInt
    """The weight version that this step produced."""
    epoch: NonNegativeInt
    started_ns: NonNegativeInt
    ended_ns: NonNegativeInt
    rollouts: tuple[RolloutDisposition, ...]
    metrics: dict[str, float]
    batch_sha256: str = ""
    """SHA-256 of the batch: its sequences and advantages, bit by bit."""
    settings: str = ""
    """The learner's settings, JSON: with them the batch can be rebuilt."""
    spans: tuple[Span, ...]
    """One span per rollout that was trained on, in the trace of that rollout."""


class TaskDecision(Event, frozen=True, kw_only=True):
    """Decision of a learner about a group: its task was selected, or the group was left out of training."""

    run_id: SubjectToken
    model: SubjectToken
    task_id: Identifier
    source_task: Identifier
    """Id of the task in its file, without run and turn."""
    decision: Literal["selected", "without_signal"]
    """``without_signal``: all rollouts have advantage 0, and another group takes the place."""
    passed: NonNegativeFloat
    """Rollouts of the task that have passed; older ones count less. ``without_signal``: those of this group."""
    failed: NonNegativeFloat
    weight: NonNegativeFloat = 0.0
    """Weight that the sampler gave the task; 0 for other decisions."""
    share: NonNegativeFloat = 0.0
    """Weight by the sum of the weights of all tasks of its set."""
    decided_at_ns: NonNegativeInt


class DispatchMark(Event, frozen=True, kw_only=True):
    """Number of dispatched groups of a run; the last message on its subject is the current count."""

    run_id: SubjectToken
    num_groups: NonNegativeInt
    groups_by_model: Annotated[dict[SubjectToken, NonNegativeInt], Meta(max_length=MAX_POLICIES)] = field(
        default_factory=dict
    )
    """Groups dispatched by the learner of each model."""
    settings_sha256: str
    """SHA-256 of the settings that learners of one run must share."""
    tasks_sha256: str
    """SHA-256 of the shared settings that say which tasks are dispatched, and not how each is run."""
    marked_at_ns: NonNegativeInt
