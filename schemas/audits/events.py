"""Events about audits: recomputed tokens of a rollout, and verdicts on engines and weight versions."""

from typing import Annotated, Literal

from msgspec import Meta

from lightningbus.schemas.base import Event, Identifier, NonNegativeInt, SubjectToken
from lightningbus.schemas.spans import EngineId
from lightningbus.schemas.weights.events import MAX_REASON_CHARS

MAX_VERDICTS = 200
"""Verdicts on one model: the oldest is dropped for a new one."""


class RolloutAudit(Event, frozen=True, kw_only=True):
    """Tokens of one rollout, sampled by one engine under one version, compared with what that version gives."""

    run_id: SubjectToken
    rollout_id: Identifier
    execution_id: str
    call: NonNegativeInt
    """Index of the call in its attempt."""
    model: SubjectToken
    engine_id: EngineId
    version: NonNegativeInt
    num_tokens: NonNegativeInt
    num_differing: NonNegativeInt
    """Tokens whose log-probability differs from the recomputed one by more than the auditor's ``tolerance``."""
    mean_difference: float
    """Mean of the absolute difference, in nats."""
    max_difference: float
    tolerance: float
    """In nats."""
    evidence: float
    """Natural log of the evidence against the engine after these tokens; see `lightningbus.auditor.evidence`."""
    audited_at_ns: NonNegativeInt


class AuditVerdict(Event, frozen=True, kw_only=True):
    """Tokens that are not what they were recorded to be: they are quarantined, which means never trained.

    Or the end of such a verdict, by a person.
    """

    action: Literal["convicted", "overturned"] = "convicted"
    """``overturned``: earlier verdicts on the same engine, or version, do not hold any more."""
    engine_id: EngineId = ""
    """The engine that is convicted; empty: every engine."""
    version: NonNegativeInt
    """The version that is convicted; with an engine, every newer one too."""
    failed_version: NonNegativeInt
    """The version whose tokens completed the evidence."""
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)]
    num_tokens: NonNegativeInt
    """Audited tokens since the fault began."""
    evidence: float
    """Natural log, as of `RolloutAudit`."""
    decided_at_ns: NonNegativeInt


class AuditState(Event, frozen=True, kw_only=True):
    """All verdicts on a model; the last message on its subject is the current state."""

    model: SubjectToken
    verdicts: tuple[AuditVerdict, ...] = ()
    """Oldest first."""
