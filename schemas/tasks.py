"""Events about tasks: what an agent is given to do, and the record that it was published."""

from typing import Annotated, Any

from msgspec import Meta, field

from lightningbus.schemas.base import (
    MAX_POLICIES,
    MAX_PROMPTS,
    EvaluationName,
    Event,
    Identifier,
    Labels,
    Mode,
    NonNegativeInt,
    PositiveInt,
    PositiveSeconds,
    RoleName,
    SubjectToken,
)
from lightningbus.schemas.spans import Span

AUTO_MODEL = "auto"
"""Name for the model of the task in an agent's calls, as in Agent Lightning's examples."""


class TaskIdentity(Event, frozen=True, kw_only=True):
    """The fields that identify a task; they can be read even if the rest of it is invalid."""

    id: Identifier
    run_id: SubjectToken
    agent: SubjectToken
    sample_index: NonNegativeInt = 0
    group_size: PositiveInt = 1
    mode: Mode = "train"
    evaluation: EvaluationName = ""
    model: SubjectToken = "policy"
    """The model that the agent calls, by this name or as ``policy:role``."""


class Task(TaskIdentity, frozen=True, kw_only=True):
    """One sample of one task for one agent; ``n`` samples are ``n`` messages.

    The task is GRPO's group; a (task, sample) pair is a *rollout*; one delivery is an *attempt*.
    """

    input: Any
    deadline: PositiveSeconds = 60.0
    max_attempts: PositiveInt = 3
    prior_attempts: NonNegativeInt = 0
    """Deliveries before it was replayed from the dead letters: attempts continue to count from here."""
    role_models: Annotated[dict[RoleName, SubjectToken], Meta(max_length=MAX_POLICIES)] = field(default_factory=dict)
    """Other models that answer for some roles of the agent, such as ``{"checker": "checker"}``."""
    weight_versions: Annotated[dict[SubjectToken, NonNegativeInt], Meta(max_length=MAX_POLICIES)] = field(
        default_factory=dict
    )
    """Exact version that serves the calls of each model listed; other models use their current version."""
    prompt_versions: Annotated[dict[SubjectToken, NonNegativeInt], Meta(max_length=MAX_PROMPTS)] = field(
        default_factory=dict
    )
    """Exact version of each prompt listed; other prompts use their released version."""
    sampling_params: dict[str, Any] = field(default_factory=dict)
    """Sampling settings forced on every model call, e.g. ``{"temperature": 0}`` for greedy evaluation."""
    reward_name: Annotated[str, Meta(max_length=64)] | None = None
    """Name of the reward that counts in figures; empty: the main one; nil: the one that each model is trained on."""
    labels: Labels = field(default_factory=dict)
    """To group reports by, such as ``{"difficulty": "hard"}``; agents do not see them."""


class TaskRecord(Event, frozen=True, kw_only=True):
    """The record of a task that the bus accepted; its PRODUCER span starts the trace of the rollout."""

    task: Task
    rollout_id: Identifier
    span: Span


class TaskBatchRecord(Event, frozen=True, kw_only=True):
    """Tasks that were published together."""

    tasks: tuple[TaskRecord, ...]
