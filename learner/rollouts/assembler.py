"""Span batches into whole attempts. Pure: any order, duplicates and several attempts give the same result."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from lightningbus.learner.rollouts.intermediate_rewards import intermediate_rewards
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.algorithm import AirRule
from lightningbus.schemas import ids
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.semconv.rewards import is_usable
from lightningbus.schemas.spans import ModelCall, SpanBatch
from lightningbus.schemas.trajectory.attempt_selection import UNREWARDED_OUTCOMES, Resolution, resolution_of


@dataclass(frozen=True, slots=True)
class Rollout:
    """One whole attempt of a rollout, ready to be grouped."""

    id: str
    task_id: str
    sample_index: int
    group_size: int
    attempt: int
    execution_id: str
    outcome: Outcome
    resolution: Resolution
    reward: float | None
    calls: tuple[ModelCall, ...]
    rewards: tuple[float, ...]
    """Rewards that the spans gave each call, without the outcome."""
    first_sequence: int
    """Stream position of its first batch: replay must not begin later while it is unused."""
    last_sequence: int
    named_rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards of the whole attempt by name, those that training can use, in the order of their names."""
    error: str = ""
    """The runner's error message."""
    problem: str = ""
    """Reason why it cannot be read; empty: it can."""
    teacher_scores: Mapping[str, TeacherScores] = field(default_factory=dict, compare=False)
    """Scores of all tokens of the trained model's answers, call after call, by teacher."""

    @property
    def models(self) -> dict[str, list[int]]:
        """Positions of each model's calls in ``calls``."""
        positions: dict[str, list[int]] = {}
        for position, call in enumerate(self.calls):
            positions.setdefault(call.model, []).append(position)
        return positions

    @property
    def root_span_id(self) -> str:
        """Parent of the spans that training adds."""
        return ids.root_span_id(self.id, self.execution_id)


@dataclass(slots=True)
class _PartialAttempt:
    task: str
    batches: dict[int, SpanBatch] = field(default_factory=dict)
    first_sequence: int = 0
    last_sequence: int = 0
    last: int | None = None


class Assembler:
    """Collects batches until an attempt is whole."""

    def __init__(self, find_rules: Callable[[str], tuple[Sequence[AirRule], str]] = lambda task: ((), "")) -> None:
        """Prepare an assembler; ``find_rules`` returns what rewards the spans of a task, and its reward's name."""
        self._find_rules = find_rules
        self._partial: dict[str, _PartialAttempt] = {}

    def add(self, batch: SpanBatch, sequence: int) -> Rollout | None:
        """Take a batch at its stream sequence; the attempt if this makes it whole. Raises `DecodeError`."""
        parts = self._partial.setdefault(batch.execution_id, _PartialAttempt(batch.task_id, first_sequence=sequence))
        parts.batches[batch.sequence] = batch
        parts.first_sequence = min(parts.first_sequence, sequence)
        parts.last_sequence = max(parts.last_sequence, sequence)
        if batch.end is not None:
            parts.last = batch.sequence
        if parts.last is None or len(parts.batches) <= parts.last:
            return None
        whole = self._partial.pop(batch.execution_id)
        if whole.batches.keys() != {*range(parts.last + 1)}:
            raise DecodeError(f"the batches of {batch.execution_id} are not numbered from 0 to {parts.last}")
        ordered = [whole.batches[number] for number in range(parts.last + 1)]
        return build_rollout(ordered, whole.first_sequence, whole.last_sequence, *self._find_rules(whole.task))

    def discard(self, tasks: Container[str]) -> None:
        """Drop the unfinished attempts of settled tasks."""
        self._partial = {execution: parts for execution, parts in self._partial.items() if parts.task not in tasks}

    def oldest_pending_sequence(self) -> int | None:
        """Return the first stream sequence of any incomplete attempt; None if there is none."""
        return min((parts.first_sequence for parts in self._partial.values()), default=None)


def build_rollout(
    batches: Sequence[SpanBatch],
    first_sequence: int,
    last_sequence: int,
    rules: Sequence[AirRule] = (),
    reward: str = "",
) -> Rollout:
    """Build a rollout from all batches of an attempt.

    ``rules`` reward spans; ``reward`` names the reward to use, empty: the main one.
    """
    batch, end = batches[-1], batches[-1].end
    assert end is not None
    spans = [span for part in batches for span in part.spans]
    outcome = choose_reward(end.reward, end.rewards, reward)
    calls = [span.call for span in spans if span.call is not None]
    return Rollout(
        id=batch.rollout_id,
        task_id=batch.task_id,
        sample_index=batch.sample_index,
        group_size=batch.group_size,
        attempt=batch.attempt,
        execution_id=batch.execution_id,
        outcome=end.outcome,
        resolution=resolution_of(end),
        reward=outcome,
        calls=tuple(sorted(calls, key=lambda call: call.index)),
        rewards=intermediate_rewards(spans, end.reward_span, rules),
        first_sequence=first_sequence,
        last_sequence=last_sequence,
        named_rewards=select_usable(end.rewards),
        error=end.error,
    )


def build_unreadable(batch: SpanBatch, sequence: int, problem: str) -> Rollout | None:
    """Build an unreadable attempt from its last batch, so that its group does not wait. None: the attempt goes on."""
    if batch.end is None:
        return None
    return Rollout(
        id=batch.rollout_id,
        task_id=batch.task_id,
        sample_index=batch.sample_index,
        group_size=batch.group_size,
        attempt=batch.attempt,
        execution_id=batch.execution_id,
        outcome=batch.end.outcome,
        resolution=resolution_of(batch.end),
        reward=None,
        calls=(),
        rewards=(),
        first_sequence=sequence,
        last_sequence=sequence,
        problem=problem,
    )


def choose_reward(main: float | None, by_name: Mapping[str, float], name: str) -> float | None:
    """Choose the reward on which a policy is trained; None if there is none, or training cannot use it."""
    value = by_name.get(name) if name else main
    return value if value is not None and is_usable(value) else None


def select_usable(by_name: Mapping[str, float]) -> dict[str, float]:
    """Select the rewards that training can use, sorted by name: a replay adds them up in the same order."""
    return {name: value for name, value in sorted(by_name.items()) if is_usable(value)}


def training_reward(rollout: Rollout, failed: str) -> float | None:
    """Return the reward for training, or None: masked. ``failed`` is the setting for rollouts the agent failed."""
    if rollout.problem:
        return None
    if rollout.outcome == "ok":
        return rollout.reward
    if rollout.outcome in UNREWARDED_OUTCOMES or failed == "mask":
        return None
    return 0.0
