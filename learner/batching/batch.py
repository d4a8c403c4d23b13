"""What one training step is made of: groups in; rows, advantages, and an account of every rollout out. Pure."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from learner.batching import credit
from learner.batching.advantages import estimator
from learner.batching.credit import Episode
from learner.batching.prefix_tree import Decode, cuts, parents
from learner.batching.rollout_uses import masked, use_of
from learner.batching.sequences import Row, Shape, rows_of
from learner.batching.staleness import lags, mask_tokens, worst_lag
from learner.batching.transitions import Transition, transitions_of
from learner.rollouts.assembler import Rollout, training_reward
from learner.rollouts.groups import MIN_GROUP_SIZE, RolloutGroup
from learner.settings.learner import LearnerSettings
from schemas.training import RolloutDisposition

CallKey = tuple[str, int]
"""A call: its rollout, and its index there."""

STALE = "stale"
"""Why a rollout is not trained on whose tokens are of versions too old."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with the advantage of each call trained in them; ``uses`` has one entry per rollout, trained or not."""

    rows: list[Row]
    advantages: dict[CallKey, float]
    uses: list[RolloutDisposition] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def advantage_of_tokens(self, row: Row) -> NDArray[np.float32]:
        """``float32[N]``: the advantage of the call that sampled each trained token, 0 for context."""
        values = np.zeros(len(row.ids), dtype=np.float32)
        for call in np.unique(row.calls[row.trained]).tolist():
            values[row.calls == call] = self.advantages[row.rollout, call]
        return values

    def digest(self) -> str:
        """SHA-256 of rows and advantages, to the bit: equal digests are equal training steps."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(f"{row.rollout}\0{row.temperature}\0{len(row.ids)}\0".encode())
            for part in (row.ids, row.calls, row.logprobs, row.versions, self.advantage_of_tokens(row)):
                digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


class BatchMaker:
    """The rules of a run: how groups become rows and advantages. Raises ValueError for a name that is not known."""

    def __init__(self, settings: LearnerSettings, decode: Decode | None = None, vocabulary: int | None = None) -> None:
        """``decode`` turns token ids into text, to tell why a conversation is no single path.

        ``vocabulary`` is the number of tokens the model has; None: whatever comes is taken to be one.
        """
        self._vocabulary = vocabulary or 2**32
        self._settings = settings
        self._decode = decode
        self._share = credit.method(settings.credit.method)
        self._estimate = estimator(settings.algorithm)
        self._shape = Shape(settings.train_roles, settings.sequence_mode, settings.seq_len, settings.overlong)

    def make(self, groups: Sequence[RolloutGroup], version: int) -> Batch:
        """Advantages first, over whole groups; only then are rollouts left out, each with its reason.

        ``version`` is the one the step starts from: a token's staleness is counted against it.
        """
        settings = self._settings
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        rewards = [training_reward(rollout, settings.failed_rollouts) for rollout in rollouts]
        calls = [self._transitions(rollout) for rollout in rollouts]
        shared = self._credit(rollouts, rewards)
        rows: list[Row] = []
        uses: list[RolloutDisposition] = []
        advantages: dict[CallKey, float] = {}
        tally: Counter[str] = Counter()
        for rollout, reward, transitions, call_credit in zip(rollouts, rewards, calls, shared, strict=True):
            sequences, left_out = rows_of(rollout.id, transitions, self._shape) if transitions is not None else ([], {})
            lag, before = worst_lag(sequences, version), sum(row.tokens for row in sequences)
            if "mask_tokens" in settings.off_policy:
                sequences = mask_tokens(sequences, version, settings.max_staleness)
                lag = worst_lag(sequences, version) if sequences else lag
            beyond = lag > settings.max_staleness and {"drop", "mask_tokens"} & set(settings.off_policy)
            reason = _reason(rollout, reward, transitions, sequences, left_out, bool(beyond), settings)
            if not reason:
                rows += sequences
                keys = [(rollout.id, call.index) for call in transitions or ()]
                advantages |= dict(zip(keys, call_credit, strict=True))
                self._count(tally, rollout, transitions or [], left_out)
                tally["tokens/masked"] += before - sum(row.tokens for row in sequences)
            uses.append(use_of(rollout, reward, call_credit, reason, sequences, lag, len(uses)))
        return Batch(rows, advantages, uses, _metrics(rows, uses, version, tally))

    def _credit(self, rollouts: Sequence[Rollout], rewards: Sequence[float | None]) -> list[list[float]]:
        """The advantage of each call; 0 where the rollout is masked or its group has fewer than two valid ones.

        verl would hand the reward of a rollout that is alone in its group through as its advantage.
        """
        valid = Counter(rollout.task for rollout, reward in zip(rollouts, rewards, strict=True) if reward is not None)
        credit = [[0.0] * len(rollout.calls) for rollout in rollouts]
        places: list[int] = []
        episodes: list[Episode] = []
        for place, (rollout, reward) in enumerate(zip(rollouts, rewards, strict=True)):
            if reward is not None and valid[rollout.task] >= MIN_GROUP_SIZE:
                places.append(place)
                states = tuple(call.prompt_ids for call in rollout.calls)
                episodes.append(Episode(rollout.task, reward, rollout.rewards, states))
        shared = self._share(episodes, self._estimate, self._settings.credit)
        name = self._settings.credit.method
        if len(shared) != len(episodes):
            raise ValueError(f"credit: {name!r} gave {len(shared)} lists for {len(episodes)} rollouts")
        for place, episode, call_credit in zip(places, episodes, shared, strict=True):
            if len(call_credit) != episode.calls or not np.isfinite(call_credit).all():
                raise ValueError(f"credit: {name!r} gave {call_credit} for a rollout of {episode.calls} calls")
            credit[place] = [float(value) for value in call_credit]
        return credit

    def _transitions(self, rollout: Rollout) -> list[Transition] | None:
        """The calls of a rollout; None if one of them is malformed, or not of this model."""
        try:
            transitions = transitions_of(rollout.calls)
        except (ValueError, LookupError, OverflowError):
            return None
        ids = (ids for call in transitions for ids in (call.prompt_ids, call.response_ids))
        return transitions if all(part.max(initial=0) < self._vocabulary for part in ids) else None

    def _count(
        self, tally: "Counter[str]", rollout: Rollout, transitions: Sequence[Transition], left_out: dict[int, str]
    ) -> None:
        tally["calls"] += len(transitions)
        tally["tokens/sampled"] += sum(call.tokens for call in transitions)
        for place, why in left_out.items():
            tally[f"left_out/{why}"] += 1
            tally["tokens/left_out"] += transitions[place].tokens
        if self._settings.sequence_mode == "trajectory" and self._decode is not None:
            for why in cuts(rollout.calls, parents(transitions), self._decode).values():
                tally[f"cuts/{why}"] += 1


def _reason(
    rollout: Rollout,
    reward: float | None,
    transitions: Sequence[Transition] | None,
    rows: Sequence[Row],
    left_out: dict[int, str],
    beyond: bool,
    settings: LearnerSettings,
) -> str:
    if reward is None:
        return masked(rollout, settings) or "no reward"
    if transitions is None:
        return "no row: malformed"
    if beyond:
        return STALE
    if not rows:
        counted = ", ".join(f"{count} {why}" for why, count in sorted(Counter(left_out.values()).items()))
        return f"no row: {counted or 'no model call'}"
    return ""


def _metrics(
    rows: Sequence[Row], uses: Sequence[RolloutDisposition], version: int, tally: "Counter[str]"
) -> dict[str, float]:
    rewards = [use.reward for use in uses if use.reward is not None]
    lag = lags(rows, version)
    fit = tally["tokens/sampled"] - tally["tokens/left_out"] - tally["tokens/masked"]
    return {
        **{name: float(count) for name, count in tally.items()},
        "reward/mean": float(np.mean(rewards)) if rewards else 0.0,
        "reward/std": float(np.std(rewards)) if rewards else 0.0,
        "rollouts": float(len(uses)),
        "rollouts/trained": float(sum(use.trained for use in uses)),
        "rows": float(len(rows)),
        "tokens": float(len(lag)),
        "coverage": len(lag) / fit if fit else 1.0,
        "staleness/mean": float(lag.mean()) if len(lag) else 0.0,
        "staleness/max": float(lag.max()) if len(lag) else 0.0,
    }
