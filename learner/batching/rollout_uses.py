"""The account of rollouts: what became of each, in a batch or not, as the event of a training step says it. Pure."""

from collections.abc import Iterable, Sequence

import numpy as np

from learner.batching.sequences import Row
from learner.rollouts.assembler import Rollout, training_reward
from learner.settings.learner import LearnerSettings
from schemas import ids
from schemas.semconv import attributes
from schemas.spans import Span
from schemas.training import RolloutDisposition, TrainingStep
from schemas.trajectory.attempt_selection import INFRA_OUTCOMES

SCOPE = "lightningbus.learner"


def masked(rollout: Rollout, settings: LearnerSettings) -> str:
    """Why a rollout that failed has no reward to train on; empty if it has one, or should have."""
    failed = rollout.outcome != "ok" and (rollout.outcome in INFRA_OUTCOMES or settings.failed_rollouts == "mask")
    return rollout.outcome if failed else ""


def use_of(
    rollout: Rollout,
    reward: float | None,
    call_credit: Sequence[float],
    reason: str,
    rows: Sequence[Row],
    lag: int,
    place: int,
) -> RolloutDisposition:
    """What a step did with a rollout; ``given`` is the advantage of each of its calls."""
    return RolloutDisposition(
        rollout_id=rollout.id,
        task_id=rollout.task,
        attempt=rollout.attempt,
        execution_id=rollout.execution,
        outcome=rollout.outcome,
        reward=reward,
        advantage=float(np.mean(call_credit)) if call_credit else 0.0,
        trained=not reason,
        exclusion_reason=reason,
        tokens=0 if reason else sum(row.tokens for row in rows),
        max_staleness=lag,
        batch_index=place,
        call_advantages=tuple(call_credit),
    )


def unused(rollouts: Iterable[Rollout], reason: str, settings: LearnerSettings) -> list[RolloutDisposition]:
    """Account of rollouts that never came into a batch."""
    return [
        use_of(
            rollout,
            training_reward(rollout, settings.failed_rollouts),
            [],
            masked(rollout, settings) or reason,
            [],
            0,
            -1,
        )
        for rollout in rollouts
    ]


def missing(rollouts: Iterable[tuple[str, int]]) -> list[RolloutDisposition]:
    """Account of rollouts, as (task, sample), that had not ended when their group was closed."""
    return [
        RolloutDisposition(
            rollout_id=ids.rollout_id(task, sample),
            task_id=task,
            attempt=0,
            execution_id="",
            outcome="",
            reward=None,
            advantage=0.0,
            trained=False,
            exclusion_reason="not ended in time",
            tokens=0,
            max_staleness=0,
        )
        for task, sample in rollouts
    ]


def spans_of(step: TrainingStep, attempts: dict[str, Rollout]) -> tuple[Span, ...]:
    """A span per rollout trained on, in that rollout's own trace: the last thing that happens to it."""
    return tuple(
        Span(
            trace_id=ids.trace_id(use.rollout_id),
            span_id=ids.span_id(use.rollout_id, "step", step.epoch, step.step),
            parent_span_id=attempts[use.rollout_id].root_span_id,
            name=f"train {step.model}",
            kind="consumer",
            start_ns=step.started_ns,
            end_ns=step.ended_ns,
            status="ok",
            scope=SCOPE,
            attributes={
                attributes.RUN: step.run_id,
                attributes.ROLLOUT: use.rollout_id,
                attributes.STEP: step.step,
                attributes.WEIGHT_VERSION: step.version,
                attributes.ADVANTAGE: use.advantage,
            },
        )
        for use in step.rollouts
        if use.trained
    )
