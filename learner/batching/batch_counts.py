"""Counts the parts of a batch, and computes the batch's metrics from the counts. Pure."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from lightningbus.learner.batching.built_rollout import OTHER_MODEL, BuiltRollout
from lightningbus.learner.batching.repetition import is_repeating
from lightningbus.learner.batching.staleness import token_staleness
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.prefix_tree import Detokenize, find_branching, find_parents, find_prefix_breaks
from lightningbus.learner.transitions.sequences import TrainSequence
from lightningbus.schemas.spans import ModelCall
from lightningbus.schemas.training import RolloutDisposition
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls

FORCED_TOKENS = "tokens/forced"
TRAINED_GROUPS, WITHOUT_SIGNAL = "groups/trained", "groups/without_signal"
WITHOUT_CALL = "rollouts/without_call"
OFFERED_TOOLS, CALLED_TOOL = "rollouts/offered_tools", "rollouts/called_tool"
TOOL_CALLS = '"tool_calls": [{'
"""JSON of an answer that calls a tool; inside a string its quotes would be escaped."""
REPEATING_CALLS = "calls/repeating"
IGNORED_REWARDS = "rewards/ignored"
"""Calls with a step reward that the credit method does not use."""
TRUNCATED_SHARE = "truncated_share"
"""Share of trained tokens sampled with truncation, penalties or constraints."""
TRUNCATED_CALLS = "truncated"
"""Calls by the setting, as ``truncated/top_k``."""
IGNORE_STEP_REWARDS = {"identical", "last_call", "discounted"}
"""Credit methods that share the outcome alone."""


def count_rollout(built: BuiltRollout, settings: LearnerSettings, detokenize: Detokenize | None) -> Counter[str]:
    """Count calls and tokens of a rollout that is trained, by the names of metrics; see `BatchBuilder`."""
    rollout, calls, counts = built.rollout, built.calls or [], Counter[str]()
    own_calls = [call for call in rollout.calls if call.model == settings.model]
    counts["calls"] += len(calls)
    counts["calls/clipped"] += sum(call.finish_reason == "length" for call in own_calls)
    if num_others := len(rollout.calls) - len(calls):
        counts[f"excluded/{OTHER_MODEL}"] += num_others
    counts["tokens/sampled"] += sum(call.num_tokens for call in calls)
    counts[OFFERED_TOOLS] += any(map(_offers_tools, own_calls))
    counts[CALLED_TOOL] += any(TOOL_CALLS in call.response for call in own_calls)
    counts[REPEATING_CALLS] += sum(is_repeating(call.response_ids) for call in calls)
    if settings.credit.method in IGNORE_STEP_REWARDS:
        counts[IGNORED_REWARDS] += sum(reward != 0 for reward in rollout.rewards)
    for index, call in enumerate(calls):
        if index not in built.excluded_calls and call.truncations:
            counts["tokens/truncated"] += call.num_tokens
            counts.update(f"{TRUNCATED_CALLS}/{name}" for name in call.truncations)
        if index not in built.excluded_calls and call.num_forced:
            counts[FORCED_TOKENS] += call.num_forced
    for index, reason in built.excluded_calls.items():
        counts[f"excluded/{reason}"] += 1
        counts["tokens/excluded"] += calls[index].num_tokens
    if (
        settings.sequence_mode == "trajectory"
        and detokenize is not None
        and find_branching(parents := find_parents(calls))
    ):
        for reason in find_prefix_breaks(_expand_own(rollout, settings), parents, detokenize).values():
            counts[f"prefix_breaks/{reason}"] += 1
    counts["tokens/masked"] += built.num_masked
    return counts


def _offers_tools(call: ModelCall) -> bool:
    """Return whether the first request of a conversation offers tools, in any of the APIs."""
    if call.request_prefix_refs or '"tools"' not in call.request:
        return False
    with suppress(ValueError):
        body = json.loads(call.request)
        return isinstance(body, dict) and bool(body.get("tools"))
    return False


def count_scored(built: Sequence[BuiltRollout]) -> Counter[str]:
    """Count the trained tokens that each teacher has scored, by its name."""
    counts = Counter[str]()
    for each in (each for each in built if not each.reason):
        teachers = {call.index: call.teacher for call in each.calls or ()}
        for row in each.sequences:
            if row.teacher_scores is not None:
                scored = row.call_index[row.trained & row.teacher_scores.is_scored]
                for call, count in zip(*np.unique(scored, return_counts=True), strict=True):
                    counts[teachers[int(call)]] += int(count)
    return counts


def count_signals(built: Sequence[BuiltRollout]) -> tuple[int, int]:
    """Count the trained groups, and the trained groups whose advantages are all 0."""
    signals: dict[str, bool] = {}
    for each in built:
        if not each.reason:
            signals[each.rollout.task_id] = signals.get(each.rollout.task_id, False) or any(each.advantages)
    return len(signals), sum(not has_signal for has_signal in signals.values())


def _expand_own(rollout: Rollout, settings: LearnerSettings) -> list[ModelCall]:
    return [call for call in expand_calls(rollout.calls) if call.model == settings.model]


def compute_metrics(
    counts: Counter[str],
    dispositions: Sequence[RolloutDisposition],
    sequences: Sequence[TrainSequence],
    version: int,
) -> dict[str, float]:
    """Compute the metrics of a batch, its counts among them."""
    rewards = [disposition.reward for disposition in dispositions if disposition.reward is not None]
    staleness = token_staleness(sequences, version)
    not_trained = ("tokens/excluded", "tokens/masked", FORCED_TOKENS)
    trainable = counts["tokens/sampled"] - sum(counts[name] for name in not_trained)
    return {
        **{name: float(count) for name, count in counts.items()},
        "reward/mean": float(np.mean(rewards)) if rewards else 0.0,
        "reward/std": float(np.std(rewards)) if rewards else 0.0,
        "rollouts": float(len(dispositions)),
        "rollouts/trained": float(sum(disposition.trained for disposition in dispositions)),
        "sequences": float(len(sequences)),
        "tokens": float(len(staleness)),
        "response_length/mean": counts["tokens/sampled"] / max(counts["calls"], 1),
        "response_length/clip_ratio": counts["calls/clipped"] / max(counts["calls"], 1),
        TRUNCATED_SHARE: counts["tokens/truncated"] / max(counts["tokens/sampled"] - counts["tokens/excluded"], 1),
        "coverage": len(staleness) / trainable if trainable else 1.0,
        "staleness/mean": float(staleness.mean()) if len(staleness) else 0.0,
        "staleness/max": float(staleness.max()) if len(staleness) else 0.0,
    }
