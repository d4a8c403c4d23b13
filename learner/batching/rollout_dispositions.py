"""Dispositions of rollouts, trained or not, as the event of a training step reports them. Pure."""

from collections.abc import Iterable, Sequence

import numpy as np

from lightningbus.learner.rollouts.assembler import Rollout, training_reward
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.sequences import TrainSequence
from lightningbus.learner.transitions.transitions import Ids
from lightningbus.schemas import ids
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.schemas.audits.quarantine import find_verdict
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span
from lightningbus.schemas.training import RolloutDisposition, TrainingStep
from lightningbus.schemas.trajectory.attempt_selection import INFRA_OUTCOMES, UNREWARDED_OUTCOMES

SCOPE = "lightningbus.learner"
STALE = "stale"
"""Reason for excluding a rollout whose tokens are of versions too old."""
SURPLUS = "surplus"
"""Reason for excluding a rollout that another learner dispatched, beyond what this one can train within the bound."""
NO_SIGNAL = "without signal"
"""Reason for leaving out a rollout of a group whose advantages are all 0, and which another group replaces."""
NO_REWARD = "no reward"
"""Reason for excluding a rollout without the reward that trains the model; the reward's name may follow."""
QUARANTINED = "quarantined"
"""Reason for excluding a rollout that the auditor's verdicts apply to; the engine or version follows."""


def failure_reason(rollout: Rollout, settings: LearnerSettings) -> str:
    """Return the reason why a failed rollout has no reward to train on; empty if it has one, or should have."""
    if rollout.problem:
        return rollout.problem
    failed = rollout.outcome != "ok" and (rollout.outcome in UNREWARDED_OUTCOMES or settings.failed_rollouts == "mask")
    return rollout.outcome if failed else ""


def is_passing(reason: str) -> bool:
    """Return whether the reason for an exclusion may pass by itself: neither agent nor settings are at fault."""
    return reason in (STALE, *INFRA_OUTCOMES) or reason.startswith(QUARANTINED)


def describe_missing_reward(settings: LearnerSettings) -> str:
    """Return the reason for excluding a rollout that ended well without the reward that the model is trained on."""
    return f"{NO_REWARD} {settings.reward!r}" if settings.reward else NO_REWARD


def disposition_of(
    rollout: Rollout,
    reward: float | None,
    call_advantages: Sequence[float],
    reason: str,
    sequences: Sequence[TrainSequence],
    max_staleness: int,
    batch_index: int,
    positions: Sequence[int] = (),
) -> RolloutDisposition:
    """Return the record of one rollout in a step; an empty ``reason`` means that it was trained.

    ``positions`` are the indices of the model's own calls. The advantage is their mean, without calls of other models.
    """
    own_advantages = [call_advantages[position] for position in positions]
    trained = [] if reason else sequences
    tokens_by_call = _count_values(sequence.call_index[sequence.trained] for sequence in trained)
    tokens_by_version = _count_values(sequence.weight_versions[sequence.trained] for sequence in trained)
    return RolloutDisposition(
        rollout_id=rollout.id,
        task_id=rollout.task_id,
        attempt=rollout.attempt,
        execution_id=rollout.execution_id,
        outcome=rollout.outcome,
        reward=reward,
        advantage=float(np.mean(own_advantages)) if own_advantages else 0.0,
        trained=not reason,
        exclusion_reason=reason,
        tokens=sum(tokens_by_call.values()),
        max_staleness=max_staleness,
        batch_index=batch_index,
        call_advantages=tuple(call_advantages),
        call_roles=tuple(call.role for call in rollout.calls),
        call_tokens=tuple(tokens_by_call.get(call.index, 0) for call in rollout.calls),
        version_tokens=tuple(tokens_by_version.items()),
    )


def _count_values(arrays: Iterable[Ids]) -> dict[int, int]:
    """Count each value in ``int64[N]`` arrays; return the counts by value, in ascending order."""
    values, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *arrays]), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def excluded(rollouts: Iterable[Rollout], reason: str, settings: LearnerSettings) -> list[RolloutDisposition]:
    """Build dispositions of rollouts that never came into a batch."""
    return [
        disposition_of(
            rollout,
            training_reward(rollout, settings.failed_rollouts),
            [],
            failure_reason(rollout, settings) or reason,
            [],
            0,
            -1,
        )
        for rollout in rollouts
    ]


def not_finished(rollouts: Iterable[tuple[str, int]]) -> list[RolloutDisposition]:
    """Build dispositions of rollouts, as (task id, sample index), that had not ended when their group was closed."""
    return [
        RolloutDisposition(
            rollout_id=ids.rollout_id(task_id, sample_index),
            task_id=task_id,
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
        for task_id, sample_index in rollouts
    ]


def quarantine_reasons(rollouts: Iterable[Rollout], verdicts: Sequence[AuditVerdict], model: str) -> dict[str, str]:
    """Return, by rollout id, the reason for excluding each rollout that a verdict on the model applies to."""
    reasons = {}
    for rollout in rollouts:
        if (verdict := find_verdict((call for call in rollout.calls if call.model == model), verdicts)) is not None:
            suspect = f"engine {verdict.engine_id}" if verdict.engine_id else f"version {verdict.version}"
            reasons[rollout.id] = f"{QUARANTINED}: {suspect}"
    return reasons


def find_tasks_to_replace(dispositions: Sequence[RolloutDisposition]) -> list[str]:
    """Find tasks of which nothing is trained because their rollouts are stale or quarantined."""
    trained = {disposition.task_id for disposition in dispositions if disposition.trained}
    lost = (
        disposition.task_id
        for disposition in dispositions
        if disposition.exclusion_reason.startswith((STALE, QUARANTINED))
    )
    return [task for task in dict.fromkeys(lost) if task not in trained]


def build_spans(step: TrainingStep, rollouts: dict[str, Rollout]) -> tuple[Span, ...]:
    """Create a span in the trace of each trained rollout: the last one of that trace."""
    return tuple(
        Span(
            trace_id=ids.trace_id(disposition.rollout_id),
            span_id=ids.span_id(disposition.rollout_id, "step", step.epoch, step.step),
            parent_span_id=rollouts[disposition.rollout_id].root_span_id,
            name=f"train {step.model}",
            kind="consumer",
            start_ns=step.started_ns,
            end_ns=step.ended_ns,
            status="ok",
            scope=SCOPE,
            attributes={
                attributes.RUN: step.run_id,
                attributes.ROLLOUT: disposition.rollout_id,
                attributes.STEP: step.step,
                attributes.WEIGHT_VERSION: step.version,
                attributes.ADVANTAGE: disposition.advantage,
            },
        )
        for disposition in step.rollouts
        if disposition.trained
    )
