"""One rollout of a batch: its calls as sequences to train on, or the reason why it is left out. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lightningbus.learner.batching.overlong import OVERLONG, is_cut
from lightningbus.learner.batching.rollout_dispositions import STALE, describe_missing_reward, failure_reason
from lightningbus.learner.batching.staleness import mask_stale_tokens, max_staleness_of
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.rollouts.rejection_streak import NO_CALL
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import Transition, add_teacher_scores, build_transitions

OTHER_MODEL = "model"
"""Reason for excluding a call that another model answered."""
WITHOUT_CREDIT = "credit"
"""Reason for excluding a call that the credit method does not train."""


@dataclass(frozen=True, slots=True)
class BuiltRollout:
    """A rollout with its sequences; with a ``reason`` it is not trained."""

    rollout: Rollout
    reward: float | None
    credit: Sequence[float | None]
    """Advantage of each call; None: it is not trained."""
    positions: Sequence[int]
    """Indices of this model's calls among all calls of the rollout."""
    calls: Sequence[Transition] | None
    """Calls of this model; None: one is malformed."""
    excluded_calls: dict[int, str]
    """Reasons, by index among ``calls``."""
    sequences: Sequence[TrainSequence]
    num_sampled: int
    """Tokens of the sequences, those masked as stale included."""
    staleness: int
    reason: str

    @property
    def advantages(self) -> list[float]:
        """The advantage of each call, 0 where it is not trained."""
        return [value or 0.0 for value in self.credit]

    @property
    def num_masked(self) -> int:
        """Tokens masked as stale."""
        return self.num_sampled - sum(sequence.num_tokens for sequence in self.sequences)


class RolloutBuilder:
    """Builds rollouts by the rules of a run."""

    def __init__(self, settings: LearnerSettings, vocabulary_size: int | None = None) -> None:
        """Keep the rules. ``vocabulary_size``: number of the model's tokens; None: every token id counts as valid."""
        self._settings, self._sets, self._vocabulary_size = settings, TaskSets(settings), vocabulary_size or 2**32
        self.oldest_version = 0
        """The bound on staleness holds for tokens of versions below it, whatever `staleness.on_exceed` says."""
        self._sequence_config = SequenceConfig(
            settings.train_roles, settings.sequence_mode, settings.seq_len, settings.overlong
        )

    def build(
        self, rollout: Rollout, reward: float | None, credit: Sequence[float | None], version: int, quarantine: str
    ) -> BuiltRollout:
        """Build the sequences, and decide whether they are trained; ``quarantine``: a reason that comes first."""
        settings = self._settings
        positions = rollout.models.get(settings.model, [])
        calls = self._build_transitions(rollout)
        without_credit = {index: WITHOUT_CREDIT for index, position in enumerate(positions) if credit[position] is None}
        sequences, excluded_calls = build_sequences(rollout.id, calls or [], self._sequence_config, without_credit)
        num_sampled = sum(sequence.num_tokens for sequence in sequences)
        staleness = max_staleness_of(sequences, version)
        if settings.staleness.on_exceed == "mask":
            sequences = mask_stale_tokens(sequences, version, settings.max_staleness)
            staleness = max_staleness_of(sequences, version) if sequences else staleness
        is_stale = staleness > settings.max_staleness and self._is_bounded_at(version - staleness)
        reason = quarantine or self._exclusion_reason(rollout, reward, calls, sequences, excluded_calls, is_stale)
        return BuiltRollout(
            rollout, reward, credit, positions, calls, excluded_calls, sequences, num_sampled, staleness, reason
        )

    def _build_transitions(self, rollout: Rollout) -> list[Transition] | None:
        """Return this model's calls in a rollout; None if one is malformed or has token ids beyond the vocabulary."""
        try:
            transitions = build_transitions(rollout.calls, self._settings.model)
            scores = rollout.teacher_scores.items()
            known = {name: values.drop_beyond(self._vocabulary_size) for name, values in scores}
            transitions = add_teacher_scores(transitions, known)
        except (ValueError, LookupError, OverflowError):
            return None
        token_ids = (ids for call in transitions for ids in (call.prompt_ids, call.response_ids))
        return transitions if all(ids.max(initial=0) < self._vocabulary_size for ids in token_ids) else None

    def _is_bounded_at(self, version: int) -> bool:
        """Return whether tokens of a version are left out beyond the bound on staleness."""
        staleness = self._settings.staleness
        return staleness.on_exceed != "keep" or (staleness.admission == "bounded" and version < self.oldest_version)

    def _exclusion_reason(
        self,
        rollout: Rollout,
        reward: float | None,
        calls: Sequence[Transition] | None,
        sequences: Sequence[TrainSequence],
        excluded_calls: dict[int, str],
        is_stale: bool,
    ) -> str:
        if reward is None:
            return failure_reason(rollout, self._settings) or describe_missing_reward(
                self._sets.find_settings(rollout.task_id)
            )
        if calls is None:
            return "no sequence: malformed"
        if is_stale:
            return STALE
        if self._settings.algorithm.overlong_filtering and is_cut(rollout, self._settings.model):
            return OVERLONG
        if not sequences:
            counted = Counter(excluded_calls.values())
            counted[OTHER_MODEL] += len(rollout.calls) - len(calls)
            reasons = sorted((+counted).items())
            return f"no sequence: {', '.join(f'{count} {reason}' for reason, count in reasons) or NO_CALL}"
        return ""
