"""The history of a run as an outsider sees it: acknowledged tasks, messages on the wire, rows of the views. Pure."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One sample of a task."""

    rollout_id: str
    mode: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """The end of one execution of an agent."""

    rollout_id: str
    execution_id: str
    resolution: str
    """``final``, ``abandoned`` or ``retried``."""
    outcome: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class Call:
    """One model call with its full prompt."""

    execution_id: str
    index: int
    span_id: str
    prompt_ids: tuple[int, ...]
    prompt_sha256: str
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Weight version of each token of the response."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a rollout by a training step."""

    rollout_id: str
    execution_id: str
    is_trained: bool
    exclusion_reason: str
    reward: float | None
    version_tokens: tuple[tuple[int, int], ...]
    """Weight versions that sampled trained tokens, each with the number of tokens."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of a model by the learner of an epoch."""

    model: str
    step: int
    version: int
    epoch: int
    batch_sha256: str
    uses: tuple[Use, ...]
    """In the order of their rollouts."""


@dataclass(frozen=True, slots=True)
class Version:
    """One published manifest of a model's weights."""

    model: str
    version: int
    epoch: int
    fingerprint: str
    """Digest of the weights; empty in SQL, which does not have it."""


@dataclass(slots=True)
class Record:
    """The messages or rows of one side, in its order and with all repetitions."""

    tasks: list[Task] = field(default_factory=list)
    span_ids: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Everything that a judge needs to know of a run that has come to its end."""

    acknowledged: list[str]
    """Rollouts of tasks that the publisher's server has acknowledged."""
    max_staleness: int
    wire: Record
    """Attempts, steps and versions are in the order of their streams."""
    sql: Record
    rollouts: list[Attempt]
    """Rows of the view `rollouts`."""
    dead_letters: list[str]

    def counts(self) -> dict[str, Any]:
        """Sizes of the history, for a report."""
        return {
            "rollouts": len(self.rollouts), "attempts": len(self.sql.attempts), "calls": len(self.sql.calls),
            "spans": len(self.sql.span_ids), "steps": len(self.sql.steps), "versions": len(self.sql.versions),
            "trained": sum(use.is_trained for step in self.sql.steps for use in step.uses),
        }  # fmt: skip
