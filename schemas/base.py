"""The base class of all events, and the types of their fields.

Events are frozen structs. On the wire each is a MessagePack map, keyed by field name. Numeric arrays are raw
little-endian bytes, so that a reader maps them without a copy: token ids are ``u32``, log-probabilities are ``f32``.
Times are Unix nanoseconds.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SubjectToken = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""A name that can be one token of a subject: letters, digits, ``_`` and ``-``."""
Identifier = Annotated[str, Meta(min_length=1, max_length=200)]
Labels = Annotated[
    dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")], Annotated[str, Meta(max_length=200)]],
    Meta(max_length=16),
]
"""Labels of a task beside its id, for grouping in reports."""
NonNegativeInt = Annotated[int, Meta(ge=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
MAX_TIME_NS = 2**63 - 1
"""The latest time that can be stored, in the year 2262: what 64 bits with a sign hold, as ClickHouse keeps times."""
PositiveSeconds = Annotated[float, Meta(gt=0)]
Mode = Literal["train", "eval"]
EvaluationName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}$")]
"""Name of the evaluation that a rollout belongs to, such as ``greedy``; empty: training, or an unnamed evaluation."""
RoleName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
"""A role of an agent: what follows the colon in a model name such as ``policy:writer``."""
MAX_PROMPTS = 64
"""Prompts of one agent."""
MAX_POLICIES = 64
"""Models that the agents of one task may call by role, or that may be pinned."""
Outcome = Literal[
    "ok", "agent_error", "timeout", "reward_timeout", "grading_failed", "infra_error", "poison", "preempted"
]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all events. Readers ignore unknown fields, so newer writers may add some.

    A field with its default value is not written.
    """
