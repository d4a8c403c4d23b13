"""Findings about training, from the metrics of its newest steps: learning that stands still or goes wrong. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from lightningbus.alerts.table import MAX_CLIPPED, MAX_CLIPPED_SHARE, MAX_REPEATING, MIN_EFFECTIVE, NUM_TRAINING_STEPS
from lightningbus.learner.batching.batch_counts import (
    CALLED_TOOL,
    IGNORED_REWARDS,
    OFFERED_TOOLS,
    REPEATING_CALLS,
    TRAINED_GROUPS,
    TRUNCATED_CALLS,
    TRUNCATED_SHARE,
    WITHOUT_CALL,
    WITHOUT_SIGNAL,
)
from lightningbus.learner.mismatch import is_apart

Metrics = Mapping[str, float]
OTHER_LOSSES = {"actor/ce_loss", "actor/teacher_kl"}
"""Metrics of steps that learn from more than rewards."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on the metrics of one step, and the values of its alert's sentence."""

    has_problem: Callable[[Metrics], bool]
    read_values: Callable[[Metrics], Mapping[str, object]] = lambda metrics: {}
    num_steps: int = NUM_TRAINING_STEPS
    """Steps in a row that must have the problem."""
    needs_all: bool = False
    """Whether all steps of a run with fewer steps are enough."""


def find_problems(
    recent: Sequence[Metrics], firing: Collection[str], max_steps: int
) -> dict[str, Mapping[str, object]]:
    """Map the alert rules that hold now to the values of their sentences; ``recent`` are the newest steps, in order.

    A rule begins to hold when all the steps that it asks for have the problem. A rule that is ``firing`` holds until no
    recent step has the problem.
    """
    problems: dict[str, Mapping[str, object]] = {}
    for rule, check in CHECKS.items():
        has_problem = [check.has_problem(metrics) for metrics in recent]
        num_steps = min(check.num_steps, max_steps) if check.needs_all else check.num_steps
        begins = len(recent) >= num_steps and all(has_problem[-num_steps:])
        if begins or (rule in firing and any(has_problem)):
            newest = next(metrics for metrics, has in zip(recent[::-1], has_problem[::-1], strict=True) if has)
            problems[rule] = check.read_values(newest)
    return problems


def _has_equal_rewards(metrics: Metrics) -> bool:
    return metrics["rollouts"] > 1 and metrics["reward/std"] == 0 and _learns_from_rewards(metrics)


def _has_no_signal(metrics: Metrics) -> bool:
    num_groups = metrics.get(TRAINED_GROUPS, 0.0)
    is_silent = 0 < num_groups <= metrics.get(WITHOUT_SIGNAL, 0.0)
    return is_silent and _learns_from_rewards(metrics) and not _has_equal_rewards(metrics)


def _has_no_gradient(metrics: Metrics) -> bool:
    is_explained = _has_equal_rewards(metrics) or _has_no_signal(metrics)
    return metrics.get("actor/grad_norm") == 0 and not is_explained


def _lacks_tool_calls(metrics: Metrics) -> bool:
    """Return whether nothing is learned, tools were offered, and no rollout called a tool."""
    learns_nothing = _has_equal_rewards(metrics) or _has_no_signal(metrics)
    return learns_nothing and metrics.get(OFFERED_TOOLS, 0.0) > 0 and metrics.get(CALLED_TOOL, 0.0) == 0


def _learns_from_rewards(metrics: Metrics) -> bool:
    return metrics["rollouts"] > 0 and OTHER_LOSSES.isdisjoint(metrics)


def _list_truncations(metrics: Metrics) -> str:
    return ", ".join(sorted(name.partition("/")[2] for name in metrics if name.startswith(f"{TRUNCATED_CALLS}/")))


def _share(metrics: Metrics, part: str, whole: str) -> float:
    return metrics.get(part, 0.0) / max(metrics.get(whole, 0.0), 1.0)


CHECKS: dict[str, Check] = {
    "policies_apart": Check(
        lambda metrics: is_apart(metrics, MAX_CLIPPED_SHARE),
        lambda metrics: {"share": metrics["agreement/clipped_share"], "k3": metrics["agreement/k3"]},
        num_steps=1,
    ),
    "tools_uncalled": Check(
        _lacks_tool_calls, lambda metrics: {"num_rollouts": metrics[OFFERED_TOOLS]}, needs_all=True
    ),
    "rewards_equal": Check(
        lambda metrics: _has_equal_rewards(metrics) and not _lacks_tool_calls(metrics),
        lambda metrics: {"reward": metrics["reward/mean"]},
        needs_all=True,
    ),
    "no_signal": Check(lambda metrics: _has_no_signal(metrics) and not _lacks_tool_calls(metrics), needs_all=True),
    "zero_gradient": Check(_has_no_gradient, needs_all=True),
    "sampling_constrained": Check(
        lambda metrics: metrics.get(TRUNCATED_SHARE, 0.0) > 0,
        lambda metrics: {"share": metrics[TRUNCATED_SHARE], "names": _list_truncations(metrics)},
        num_steps=1,
    ),
    "rewards_ignored": Check(
        lambda metrics: metrics.get(IGNORED_REWARDS, 0.0) > 0,
        lambda metrics: {"num_calls": metrics[IGNORED_REWARDS]},
        num_steps=1,
    ),
    "rollouts_without_call": Check(
        lambda metrics: metrics.get(WITHOUT_CALL, 0.0) > 0,
        lambda metrics: {"share": _share(metrics, WITHOUT_CALL, "rollouts")},
        num_steps=1,
    ),
    "answers_repeat": Check(
        lambda metrics: _share(metrics, REPEATING_CALLS, "calls") > MAX_REPEATING,
        lambda metrics: {"share": _share(metrics, REPEATING_CALLS, "calls")},
    ),
    "tokens_clipped": Check(
        lambda metrics: metrics.get("actor/pg_clipfrac", 0.0) > MAX_CLIPPED,
        lambda metrics: {"share": metrics["actor/pg_clipfrac"]},
    ),
    "sample_small": Check(
        lambda metrics: metrics.get("off_policy/ess", 1.0) < MIN_EFFECTIVE,
        lambda metrics: {"share": metrics["off_policy/ess"]},
    ),
}
"""Checks by the name of their alert rule."""
