"""What one training step is made of: groups in; rows, advantages, and an account of every rollout out. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from learner import credit
from learner.advantages import advantages_of
from learner.groups import Group
from learner.rollouts import Rollout, reward_of
from learner.settings import LearnerSettings
from learner.staleness import lags, worst_lag
from learner.transitions import Row, rows_of
from schemas import attributes, identity
from schemas.attempts import OURS
from schemas.events import RolloutUse, Span, TrainingStep

SCOPE = "lightningbus.learner"


@dataclass(frozen=True, slots=True)
class Batch:
    """``advantages[i]`` goes with ``rows[i]``; ``uses`` has one entry per rollout, trained or not."""

    rows: list[Row]
    advantages: list[float]
    uses: list[RolloutUse]
    metrics: dict[str, float]


def make_batch(groups: Sequence[Group], version: int, settings: LearnerSettings) -> Batch:
    """Advantages first, over whole groups; only then are rollouts left out, each with its reason.

    ``version`` is the one the step starts from: a token's staleness is counted against it.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = [reward_of(rollout, settings.failed_rollouts) for rollout in rollouts]
    advantages = advantages_of(rewards, [rollout.task for rollout in rollouts], settings.algorithm)
    share = credit.method(settings.credit)
    rows: list[Row] = []
    row_advantages: list[float] = []
    uses: list[RolloutUse] = []
    for rollout, reward, advantage in zip(rollouts, rewards, advantages, strict=True):
        own, left_out = rows_of(rollout, settings.train_roles, settings.max_row_tokens)
        lag = worst_lag(own, version)
        reason = _reason(rollout, reward, own, left_out, lag, settings)
        if not reason:
            rows += own
            row_advantages += share(advantage, own)
        uses.append(_use(rollout, reward, advantage, reason, own, lag))
    return Batch(rows, row_advantages, uses, _metrics(rows, uses, version))


def unused(rollouts: Iterable[Rollout], reason: str, settings: LearnerSettings) -> list[RolloutUse]:
    """Account of rollouts that never came into a batch."""
    return [
        _use(rollout, reward_of(rollout, settings.failed_rollouts), 0.0, _masked(rollout, settings) or reason, [], 0)
        for rollout in rollouts
    ]


def missing(rollouts: Iterable[tuple[str, int]]) -> list[RolloutUse]:
    """Account of rollouts, as (task, sample), that had not ended when their group was closed."""
    return [
        RolloutUse(
            rollout=identity.rollout_id(task, sample),
            task=task,
            attempt=0,
            execution="",
            outcome="",
            reward=None,
            advantage=0.0,
            trained=False,
            reason="not ended in time",
            tokens=0,
            staleness_max=0,
        )
        for task, sample in rollouts
    ]


def spans_of(step: TrainingStep, attempts: dict[str, Rollout]) -> tuple[Span, ...]:
    """A span per rollout trained on, in that rollout's own trace: the last thing that happens to it."""
    return tuple(
        Span(
            trace_id=identity.trace_id(use.rollout),
            span_id=identity.span_id(use.rollout, "step", step.epoch, step.step),
            parent_span_id=attempts[use.rollout].root_span_id,
            name=f"train {step.model}",
            kind="consumer",
            start_ns=step.started_ns,
            end_ns=step.ended_ns,
            status="ok",
            scope=SCOPE,
            attributes={
                attributes.RUN: step.run,
                attributes.ROLLOUT: use.rollout,
                attributes.STEP: step.step,
                attributes.WEIGHT_VERSION: step.version,
                attributes.ADVANTAGE: use.advantage,
            },
        )
        for use in step.uses
        if use.trained
    )


def _reason(
    rollout: Rollout, reward: float | None, rows: list[Row], left_out: list[str], lag: int, settings: LearnerSettings
) -> str:
    if reward is None:
        return _masked(rollout, settings) or "no reward"
    if not rows:
        counted = ", ".join(f"{count} {why}" for why, count in sorted(Counter(left_out).items()))
        return f"no row: {counted or 'no model call'}"
    if lag > settings.max_staleness:
        return "stale"
    return ""


def _masked(rollout: Rollout, settings: LearnerSettings) -> str:
    failed = rollout.outcome != "ok" and (rollout.outcome in OURS or settings.failed_rollouts == "mask")
    return rollout.outcome if failed else ""


def _use(
    rollout: Rollout, reward: float | None, advantage: float, reason: str, rows: list[Row], lag: int
) -> RolloutUse:
    return RolloutUse(
        rollout=rollout.id,
        task=rollout.task,
        attempt=rollout.attempt,
        execution=rollout.execution,
        outcome=rollout.outcome,
        reward=reward,
        advantage=advantage,
        trained=not reason,
        reason=reason,
        tokens=0 if reason else sum(row.tokens for row in rows),
        staleness_max=lag,
    )


def _metrics(rows: Sequence[Row], uses: Sequence[RolloutUse], version: int) -> dict[str, float]:
    rewards = [use.reward for use in uses if use.reward is not None]
    lag = lags(rows, version)
    return {
        "reward/mean": float(np.mean(rewards)) if rewards else 0.0,
        "reward/std": float(np.std(rewards)) if rewards else 0.0,
        "rollouts": float(len(uses)),
        "rollouts/trained": float(sum(use.trained for use in uses)),
        "rows": float(len(rows)),
        "tokens": float(len(lag)),
        "staleness/mean": float(lag.mean()) if len(lag) else 0.0,
        "staleness/max": float(lag.max()) if len(lag) else 0.0,
    }
