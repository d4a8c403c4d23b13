"""The batch of one training step: groups in; sequences, advantages and the disposition of every rollout out. Pure."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.batching.advantages import GAE, Estimator, drop_error
from lightningbus.learner.batching.batch_counts import (
    TRAINED_GROUPS,
    WITHOUT_CALL,
    WITHOUT_SIGNAL,
    compute_metrics,
    count_rollout,
    count_scored,
    count_signals,
)
from lightningbus.learner.batching.built_rollout import BuiltRollout, RolloutBuilder
from lightningbus.learner.batching.credit import Episode
from lightningbus.learner.batching.demonstrations import Demonstrations, list_calls
from lightningbus.learner.batching.overlong import find_penalty
from lightningbus.learner.batching.preferences import Pair, Preferences
from lightningbus.learner.batching.rollout_dispositions import disposition_of
from lightningbus.learner.batching.set_credit import SetCredit
from lightningbus.learner.rollouts.assembler import Rollout, training_reward
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.prefix_tree import Detokenize, number_windows
from lightningbus.learner.transitions.sequences import TrainSequence
from lightningbus.schemas.training import RolloutDisposition

CallKey = tuple[str, int]
"""A call: its rollout, and its index there."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)
NOBODY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences with the advantage of each call trained in them, and one disposition per rollout, trained or not."""

    sequences: list[TrainSequence]
    advantages: dict[CallKey, float]
    dispositions: list[RolloutDisposition] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    num_tokens: dict[str, int] = field(default_factory=dict)
    """Trained plus stale tokens by rollout: the loss is normalised by these counts."""
    imitated: dict[CallKey, float] = field(default_factory=dict)
    """Weight of each call that is imitated, whether it has an advantage or not."""
    pairs: list[Pair] = field(default_factory=list)
    """Answers of which one is preferred to the other, by the ids of their sequences."""
    version: int | None = None
    """Weight version that the step starts from; None: no engine has served it."""

    def token_advantages(self, sequence: TrainSequence) -> NDArray[np.float32]:
        """Return ``float32[N]``: the advantage of the call that sampled each trained token, 0 for others."""
        return spread_over_tokens(sequence, self.advantages)

    def compute_sha256(self) -> str:
        """Compute the SHA-256 of sequences and advantages, to the bit: equal digests are equal training steps."""
        digest = hashlib.sha256()
        for sequence in self.sequences:
            header = f"{sequence.rollout_id}\0{sequence.temperature}\0{len(sequence.token_ids)}\0"
            digest.update(header.encode())
            arrays: list[NDArray[Any]] = [
                *(sequence.token_ids, sequence.call_index, sequence.logprobs, sequence.weight_versions),
                self.token_advantages(sequence),
            ]
            if self.imitated:
                arrays.append(spread_over_tokens(sequence, self.imitated))
            if (scores := sequence.teacher_scores) is not None:
                arrays += [scores.logprobs, scores.top_ids, scores.top_logprobs]
            for array in arrays:
                digest.update(np.ascontiguousarray(array).tobytes())
        for pair in self.pairs:
            digest.update(f"{pair.chosen}\0{pair.rejected}\0".encode())
        return digest.hexdigest()


def spread_over_tokens(sequence: TrainSequence, by_call: Mapping[CallKey, float]) -> NDArray[np.float32]:
    """Return ``float32[N]``: the value of each trained token's call, 0 for context and for calls without one."""
    values = np.zeros(len(sequence.token_ids), dtype=np.float32)
    for call in np.unique(sequence.call_index[sequence.trained]).tolist():
        values[sequence.call_index == call] = by_call.get((sequence.rollout_id, call), 0.0)
    return values


class BatchBuilder:
    """Turns groups into batches by the rules of a run. Raises ValueError for a credit method that is not known."""

    def __init__(
        self,
        settings: LearnerSettings,
        estimate: Estimator,
        detokenize: Detokenize | None = None,
        vocabulary_size: int | None = None,
        demonstrations: Demonstrations | None = None,
        preferences: Preferences | None = None,
    ) -> None:
        """``estimate`` turns scores into advantages. ``demonstrations`` are imitated beside the groups;
        ``preferences`` are the pairs to train on.

        ``detokenize`` tells why a conversation is no single path; None: that is not counted. ``vocabulary_size``: see
        `RolloutBuilder`.
        """
        self._settings, self._estimate, self._detokenize = settings, estimate, detokenize
        self._credit, self._demonstrations = SetCredit(settings, estimate), demonstrations
        self.preferences = preferences
        """The pairs to train on; None: there are none."""
        self._rollout_builder = RolloutBuilder(settings, vocabulary_size)

    def build(
        self, groups: Sequence[RolloutGroup], version: int, quarantined: Mapping[str, str] = NOBODY, step: int = 0
    ) -> Batch:
        """Compute advantages over whole groups first; only then exclude rollouts, each with its reason.

        ``step`` is the number of steps before: it chooses the demonstrations and pairs. ``version`` is the one the step
        starts from: a token's staleness is counted against it. ``quarantined`` are reasons by rollout: these count as
        if they had no reward.
        """
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        rewards = [
            None if rollout.id in quarantined else training_reward(rollout, self._settings.failed_rollouts)
            for rollout in rollouts
        ]
        penalties = self._find_penalties(rollouts)
        shaped = _shape(rewards, penalties)
        built = [
            self._rollout_builder.build(rollout, reward, credit, version, quarantined.get(rollout.id, ""))
            for rollout, reward, credit in zip(rollouts, rewards, self._assign_credit(rollouts, shaped), strict=True)
        ]
        batch = self._account(_collect(built, version), built, penalties, version)
        return self._add_preferences(self._add_demonstrations(batch, step), step)

    def bound_from(self, oldest_version: int) -> None:
        """Hold the bound on staleness for all tokens of versions below ``oldest_version``."""
        self._rollout_builder.oldest_version = oldest_version

    def has_signal(self, group: RolloutGroup) -> bool:
        """Return whether a call of the group has an advantage, if the group is trained."""
        rollouts = group.rollouts
        rewards = [training_reward(rollout, self._settings.failed_rollouts) for rollout in rollouts]
        shaped = _shape(rewards, self._find_penalties(rollouts))
        return any(value for values in self._assign_credit(rollouts, shaped) for value in values)

    def _find_penalties(self, rollouts: Sequence[Rollout]) -> list[float]:
        buffer = self._settings.algorithm.overlong_buffer
        return [find_penalty(rollout, self._settings.model, buffer) for rollout in rollouts]

    def _account(self, batch: Batch, built: Sequence[BuiltRollout], penalties: Sequence[float], version: int) -> Batch:
        """Add the metrics of a batch to it."""
        counts: Counter[str] = Counter()
        for each in built:
            if not each.reason:
                counts.update(
                    count_rollout(each, self._credit.sets.find_settings(each.rollout.task_id), self._detokenize)
                )
        batch.metrics[WITHOUT_CALL] = float(sum(not each.rollout.calls for each in built))
        if self._settings.algorithm.overlong_buffer is not None:
            batch.metrics["overlong/penalty"] = float(np.mean(penalties)) if penalties else 0.0
        if self._settings.algorithm.adv_estimator != GAE:  # whose advantages come from the critic
            num_groups, num_without_signal = count_signals(built)
            batch.metrics.update({TRAINED_GROUPS: float(num_groups), WITHOUT_SIGNAL: float(num_without_signal)})
        batch.metrics.update(compute_metrics(counts, batch.dispositions, batch.sequences, version))
        if teachers := self._settings.teachers:
            scored = count_scored(built)
            batch.metrics["tokens/scored"] = float(scored.total())
            if len(teachers) > 1:
                batch.metrics.update({f"tokens/scored/{each.name}": float(scored[each.name]) for each in teachers})
        return batch

    def _add_demonstrations(self, batch: Batch, step: int) -> Batch:
        """Add a step's demonstrations to a batch, where the rules have any."""
        if self._demonstrations is not None:
            sequences = self._demonstrations.take(step)
            batch.imitated.update(dict.fromkeys(list_calls(sequences), 1.0))
            batch.metrics["tokens/imitated"] = _add_sequences(batch, sequences)
        return batch

    def _add_preferences(self, batch: Batch, step: int) -> Batch:
        """Add a step's pairs to a batch, where the rules have any."""
        if self.preferences is not None:
            sequences, pairs = self.preferences.take(step)
            batch.pairs.extend(pairs)
            batch.metrics["tokens/compared"] = _add_sequences(batch, sequences)
        return batch

    def _assign_credit(self, rollouts: Sequence[Rollout], rewards: Sequence[float | None]) -> list[list[float | None]]:
        """Return the advantage of each call of each rollout; None where it is not trained.

        It is 0 where the rollout is masked, or its group has fewer than ``min_group_size`` valid rollouts: verl would
        return the reward of a single rollout as its advantage. Calls of other models have 0 too: they are this model's
        environment. A rollout without a call of this model has no part in the baseline: its reward says nothing of it.

        Raises ValueError where a credit function returns lists of wrong length or values that are no finite numbers.
        """
        own_positions = [rollout.models.get(self._settings.model, []) for rollout in rollouts]
        is_valid = [
            reward is not None and bool(positions) for reward, positions in zip(rewards, own_positions, strict=True)
        ]
        num_valid = Counter(rollout.task_id for rollout, valid in zip(rollouts, is_valid, strict=True) if valid)
        episodes = {
            index: Episode.of_calls(
                rollout.task_id,
                reward,
                rollout.rewards,
                [call.prompt_sha256 or call.prompt_ids for call in rollout.calls],
                own_positions[index],
                [len(call.response_ids) // 4 for call in rollout.calls],
                number_windows(rollout.calls) if self._credit.needs_windows(rollout.task_id) else (),
                rollout.named_rewards,
            )
            for index, (rollout, reward) in enumerate(zip(rollouts, rewards, strict=True))
            if reward is not None
            and is_valid[index]
            and num_valid[rollout.task_id] >= self._settings.algorithm.min_group_size
        }
        credited = self._credit.assign(list(episodes.values()))
        advantages: list[list[float | None]] = [[0.0] * len(rollout.calls) for rollout in rollouts]
        for (index, episode), values in zip(episodes.items(), credited, strict=True):
            if len(values) != episode.num_calls or not all(
                value is None or abs(value) <= MAX_FLOAT32 for value in values
            ):
                name = self._credit.find_method(episode.task_id)
                raise ValueError(f"credit: {name!r} gave {values} for a rollout of {episode.num_calls} calls")
            for position, value in zip(own_positions[index], values, strict=True):
                advantages[index][position] = None if value is None else float(value)
        return advantages


def _add_sequences(batch: Batch, sequences: Sequence[TrainSequence]) -> float:
    """Add sequences that no rollout of the step gave; return the number of their trained tokens."""
    num_tokens = sum(sequence.num_tokens for sequence in sequences)
    batch.sequences.extend(sequences)
    batch.metrics["tokens"] += num_tokens
    batch.metrics["sequences"] += len(sequences)
    return float(num_tokens)


def _shape(rewards: Sequence[float | None], penalties: Sequence[float]) -> list[float | None]:
    """Add penalties to rewards, without the error of the sum."""
    return [
        None if reward is None else drop_error(reward + penalty)
        for reward, penalty in zip(rewards, penalties, strict=True)
    ]


def _collect(built: Sequence[BuiltRollout], version: int) -> Batch:
    """Join sequences and advantages of the trained rollouts, and record the disposition of every rollout."""
    batch = Batch([], {}, version=version)
    for number, each in enumerate(built):
        advantages = each.advantages
        if not each.reason:
            batch.sequences.extend(each.sequences)
            batch.num_tokens[each.rollout.id] = each.num_sampled
            for call, position in zip(each.calls or (), each.positions, strict=True):
                batch.advantages[each.rollout.id, call.index] = advantages[position]
        batch.dispositions.append(
            disposition_of(
                each.rollout,
                each.reward,
                advantages,
                each.reason,
                each.sequences,
                each.staleness,
                number,
                each.positions,
            )
        )
    return batch
