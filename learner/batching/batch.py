"""The batch of one training step: groups in; sequences, advantages and the disposition of every rollout out. Pure."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.batching.advantages import make_estimator
from lightningbus.learner.batching.batch_warnings import (
    IGNORE_STEP_REWARDS,
    IGNORED_REWARDS,
    TRUNCATED_CALLS,
    TRUNCATED_SHARE,
)
from lightningbus.learner.batching.credit import Episode, resolve_credit_fn
from lightningbus.learner.batching.overlong import OVERLONG, find_penalty, is_cut
from lightningbus.learner.batching.rollout_dispositions import (
    STALE,
    describe_missing_reward,
    disposition_of,
    failure_reason,
)
from lightningbus.learner.batching.staleness import mask_stale_tokens, max_staleness_of, token_staleness
from lightningbus.learner.rollouts.assembler import Rollout, training_reward
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.prefix_tree import Detokenize, find_parents, find_prefix_breaks
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import Transition, build_transitions
from lightningbus.schemas.training import RolloutDisposition

CallKey = tuple[str, int]
"""A call: its rollout, and its index there."""
OTHER_MODEL = "model"
"""Why a call is excluded that another model answered."""
WITHOUT_CREDIT = "credit"
"""Why a call is excluded that the credit method does not train."""
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
    """By rollout: its trained tokens and those masked as stale: what the weights of tokens are counted by."""

    def token_advantages(self, sequence: TrainSequence) -> NDArray[np.float32]:
        """``float32[N]``: the advantage of the call that sampled each trained token, 0 for context."""
        advantages = np.zeros(len(sequence.token_ids), dtype=np.float32)
        for call in np.unique(sequence.call_index[sequence.trained]).tolist():
            advantages[sequence.call_index == call] = self.advantages[sequence.rollout_id, call]
        return advantages

    def compute_sha256(self) -> str:
        """SHA-256 of sequences and advantages, to the bit: equal digests are equal training steps."""
        digest = hashlib.sha256()
        for sequence in self.sequences:
            header = f"{sequence.rollout_id}\0{sequence.temperature}\0{len(sequence.token_ids)}\0"
            digest.update(header.encode())
            arrays = (sequence.token_ids, sequence.call_index, sequence.logprobs, sequence.weight_versions)
            for array in (*arrays, self.token_advantages(sequence)):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class BatchBuilder:
    """Turns groups into batches by the rules of a run. Raises ValueError for a name that is not known."""

    def __init__(
        self, settings: LearnerSettings, detokenize: Detokenize | None = None, vocabulary_size: int | None = None
    ) -> None:
        """``detokenize`` tells why a conversation is no single path; None: that is not counted.

        ``vocabulary_size`` is the number of tokens the model has; None: every token id is taken to be valid.
        """
        self._vocabulary_size = vocabulary_size or 2**32
        self._settings = settings
        self._detokenize = detokenize
        self._credit_fn = resolve_credit_fn(settings.credit.method)
        self._estimate = make_estimator(settings.algorithm)
        self._sequence_config = SequenceConfig(
            settings.train_roles, settings.sequence_mode, settings.seq_len, settings.overlong
        )

    def build(self, groups: Sequence[RolloutGroup], version: int, quarantined: Mapping[str, str] = NOBODY) -> Batch:
        """Compute advantages over whole groups first; only then exclude rollouts, each with its reason.

        ``version`` is the one the step starts from: a token's staleness is counted against it. ``quarantined`` are
        reasons by rollout: these count as if they had no reward.
        """
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        rewards = [
            None if rollout.id in quarantined else training_reward(rollout, self._settings.failed_rollouts)
            for rollout in rollouts
        ]
        buffer = self._settings.algorithm.overlong_buffer
        penalties = [find_penalty(rollout, self._settings.model, buffer) for rollout in rollouts]
        shaped = [
            None if reward is None else reward + penalty for reward, penalty in zip(rewards, penalties, strict=True)
        ]
        batch = Batch([], {})
        if buffer is not None:
            batch.metrics["overlong/penalty"] = float(np.mean(penalties)) if penalties else 0.0
        counters: Counter[str] = Counter()
        for rollout, reward, credited in zip(rollouts, rewards, self._assign_credit(rollouts, shaped), strict=True):
            advantages = [value or 0.0 for value in credited]
            positions = rollout.models.get(self._settings.model, [])
            calls = self._build_transitions(rollout)
            without_credit = {
                index: WITHOUT_CREDIT for index, position in enumerate(positions) if credited[position] is None
            }
            sequences, excluded_calls = build_sequences(rollout.id, calls or [], self._sequence_config, without_credit)
            num_sampled = sum(sequence.num_tokens for sequence in sequences)
            staleness = max_staleness_of(sequences, version)
            if self._settings.staleness.on_exceed == "mask":
                sequences = mask_stale_tokens(sequences, version, self._settings.max_staleness)
                staleness = max_staleness_of(sequences, version) if sequences else staleness
            reason = quarantined.get(rollout.id) or self._exclusion_reason(
                rollout, reward, calls, sequences, excluded_calls, staleness
            )
            if not reason:
                batch.sequences.extend(sequences)
                batch.num_tokens[rollout.id] = num_sampled
                batch.advantages.update(
                    {
                        (rollout.id, call.index): advantages[position]
                        for call, position in zip(calls or (), positions, strict=True)
                    }
                )
                self._count(counters, rollout, calls or [], excluded_calls)
                counters["tokens/masked"] += num_sampled - sum(sequence.num_tokens for sequence in sequences)
            batch.dispositions.append(
                disposition_of(
                    rollout, reward, advantages, reason, sequences, staleness, len(batch.dispositions), positions
                )
            )
        batch.metrics.update(_metrics(batch, version, counters))
        return batch

    def _assign_credit(self, rollouts: Sequence[Rollout], rewards: Sequence[float | None]) -> list[list[float | None]]:
        """The advantage of each call; None where it is not trained.

        0 where the rollout is masked or its group has too few valid ones to compare.

        Calls of other models have 0 too: they are the environment of this one.

        verl would hand the reward of a rollout that is alone in its group through as its advantage.
        """
        num_valid = Counter(
            rollout.task_id for rollout, reward in zip(rollouts, rewards, strict=True) if reward is not None
        )
        own_positions = [rollout.models.get(self._settings.model, []) for rollout in rollouts]
        episodes = {
            index: Episode.of_calls(
                rollout.task_id,
                reward,
                rollout.rewards,
                [call.prompt_ids for call in rollout.calls],
                own_positions[index],
                [len(call.response_ids) // 4 for call in rollout.calls],
            )
            for index, (rollout, reward) in enumerate(zip(rollouts, rewards, strict=True))
            if reward is not None and num_valid[rollout.task_id] >= self._settings.algorithm.min_group_size
        }
        credited = self._credit_fn(list(episodes.values()), self._estimate, self._settings.credit)
        name = self._settings.credit.method
        if len(credited) != len(episodes):
            raise ValueError(f"credit: {name!r} gave {len(credited)} lists for {len(episodes)} rollouts")
        advantages: list[list[float | None]] = [[0.0] * len(rollout.calls) for rollout in rollouts]
        for (index, episode), values in zip(episodes.items(), credited, strict=True):
            if len(values) != episode.num_calls or not all(
                value is None or abs(value) <= MAX_FLOAT32 for value in values
            ):
                raise ValueError(f"credit: {name!r} gave {values} for a rollout of {episode.num_calls} calls")
            for position, value in zip(own_positions[index], values, strict=True):
                advantages[index][position] = None if value is None else float(value)
        return advantages

    def _build_transitions(self, rollout: Rollout) -> list[Transition] | None:
        """The calls of this model in a rollout; None if one is malformed, or has tokens that the model has not."""
        try:
            transitions = build_transitions(rollout.calls, self._settings.model)
        except (ValueError, LookupError, OverflowError):
            return None
        token_ids = (ids for call in transitions for ids in (call.prompt_ids, call.response_ids))
        return transitions if all(ids.max(initial=0) < self._vocabulary_size for ids in token_ids) else None

    def _exclusion_reason(
        self,
        rollout: Rollout,
        reward: float | None,
        calls: Sequence[Transition] | None,
        sequences: Sequence[TrainSequence],
        excluded_calls: dict[int, str],
        staleness: int,
    ) -> str:
        if reward is None:
            return failure_reason(rollout, self._settings) or describe_missing_reward(self._settings)
        if calls is None:
            return "no sequence: malformed"
        if staleness > self._settings.max_staleness and self._settings.staleness.on_exceed != "keep":
            return STALE
        if self._settings.algorithm.overlong_filtering and is_cut(rollout, self._settings.model):
            return OVERLONG
        if not sequences:
            counted = Counter(excluded_calls.values())
            counted[OTHER_MODEL] += len(rollout.calls) - len(calls)
            reasons = sorted((+counted).items())
            return f"no sequence: {', '.join(f'{count} {reason}' for reason, count in reasons) or 'no model call'}"
        return ""

    def _count(
        self,
        counters: "Counter[str]",
        rollout: Rollout,
        calls: Sequence[Transition],
        excluded_calls: dict[int, str],
    ) -> None:
        counters["calls"] += len(calls)
        counters["calls/clipped"] += sum(
            call.finish_reason == "length" for call in rollout.calls if call.model == self._settings.model
        )
        if num_others := len(rollout.calls) - len(calls):
            counters[f"excluded/{OTHER_MODEL}"] += num_others
        counters["tokens/sampled"] += sum(call.num_tokens for call in calls)
        if self._settings.credit.method in IGNORE_STEP_REWARDS:
            counters[IGNORED_REWARDS] += sum(reward != 0 for reward in rollout.rewards)
        for index, call in enumerate(calls):
            if index not in excluded_calls and call.truncations:
                counters["tokens/truncated"] += call.num_tokens
                counters.update(f"{TRUNCATED_CALLS}/{name}" for name in call.truncations)
        for index, reason in excluded_calls.items():
            counters[f"excluded/{reason}"] += 1
            counters["tokens/excluded"] += calls[index].num_tokens
        if self._settings.sequence_mode == "trajectory" and self._detokenize is not None:
            own_calls = [call for call in rollout.calls if call.model == self._settings.model]
            for reason in find_prefix_breaks(own_calls, find_parents(calls), self._detokenize).values():
                counters[f"prefix_breaks/{reason}"] += 1


def _metrics(batch: Batch, version: int, counters: "Counter[str]") -> dict[str, float]:
    rewards = [disposition.reward for disposition in batch.dispositions if disposition.reward is not None]
    staleness = token_staleness(batch.sequences, version)
    trainable = counters["tokens/sampled"] - counters["tokens/excluded"] - counters["tokens/masked"]
    return {
        **{name: float(count) for name, count in counters.items()},
        "reward/mean": float(np.mean(rewards)) if rewards else 0.0,
        "reward/std": float(np.std(rewards)) if rewards else 0.0,
        "rollouts": float(len(batch.dispositions)),
        "rollouts/trained": float(sum(disposition.trained for disposition in batch.dispositions)),
        "sequences": float(len(batch.sequences)),
        "tokens": float(len(staleness)),
        "response_length/mean": counters["tokens/sampled"] / max(counters["calls"], 1),
        "response_length/clip_ratio": counters["calls/clipped"] / max(counters["calls"], 1),
        TRUNCATED_SHARE: counters["tokens/truncated"]
        / max(counters["tokens/sampled"] - counters["tokens/excluded"], 1),
        "coverage": len(staleness) / trainable if trainable else 1.0,
        "staleness/mean": float(staleness.mean()) if len(staleness) else 0.0,
        "staleness/max": float(staleness.max()) if len(staleness) else 0.0,
    }
