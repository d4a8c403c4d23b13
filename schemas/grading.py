"""Events about grading: a finished attempt that waits for its reward, and the grade that a rollout got."""

from typing import Annotated, Any

from msgspec import Meta, field

from lightningbus.schemas.base import Event, Identifier, Labels, NonNegativeInt, SubjectToken
from lightningbus.schemas.spans import SpanBatch

LIVE = "live"
"""Name of the grading that ends attempts; a later one has a name of its own."""
RewardName = Annotated[str, Meta(min_length=1, max_length=64)]


class GradingRequest(Event, frozen=True, kw_only=True):
    """A finished attempt that waits for its grade, and what graders see of it."""

    ending: SpanBatch
    """Batch that ends the attempt, with no spans and with the agent's own reward, if it gave one. The grader completes
    and publishes it."""
    input: Any = None
    """The task's input."""
    labels: Labels = field(default_factory=dict)
    """The task's labels."""
    request: str = ""
    """Request body of the attempt's last model call, JSON."""
    response: str = ""
    """The choice of the response to it, JSON."""
    problem: str = ""
    """Reason why it cannot be graded; empty: it can."""
    is_replay: bool = False
    """The attempt has ended, and gets another grade beside that of its end."""


class RolloutGraded(Event, frozen=True, kw_only=True):
    """The grade of one attempt in one grading. An attempt may have several: none replaces another."""

    run_id: SubjectToken
    task_id: Identifier
    rollout_id: Identifier
    execution_id: Identifier
    grading: SubjectToken
    """``live``: the grade that the attempt ended with; else the name of a later grading."""
    graders_sha256: str
    """SHA-256 of the graders: what they are, and how they are weighed."""
    reward: float | None = None
    """Weighted sum; none: grading failed."""
    rewards: Annotated[dict[RewardName, float], Meta(max_length=64)] = field(default_factory=dict)
    """Rewards by grader, before they are weighed."""
    error: str = ""
    """Reason why grading failed."""
    num_judge_calls: NonNegativeInt = 0
    num_cached: NonNegativeInt = 0
    """Judge calls that were answered from the cache."""
    prompt_tokens: NonNegativeInt = 0
    """Tokens of the judge calls' prompts that were not cached."""
    response_tokens: NonNegativeInt = 0
    cost: float = 0.0
    """Price of the judge calls, in the currency of the judges' prices."""
    started_at_ns: NonNegativeInt
    graded_at_ns: NonNegativeInt
