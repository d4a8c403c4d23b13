"""Which messages are signed, by which role, and over which bytes. Pure.

The bus is not trusted: a node that serves weights trusts the key of their author instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lightningbus.schemas.audits.events import AuditState
from lightningbus.schemas.base import Event
from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion
from lightningbus.schemas.weights.events import ReleaseState, WeightManifest
from lightningbus.schemas.weights.release_policy import VERDICTS

LEARNER, INFERENCE, AUDITOR, ADMIN = "learner", "inference", "auditor", "admin"
SIGNER_ROLES: Final = (LEARNER, INFERENCE, AUDITOR, ADMIN)
"""Roles with a signing key; of several learners each has its own."""
SIGNED_EVENTS: Final = (WeightManifest, ReleaseState, PromptVersion, PromptReleaseState, AuditState)
_CONTEXT = b"lightningbus signature 1"


def learner_role(model: str) -> str:
    """The role of a model's learner where learners train several models."""
    return f"{LEARNER}-{model}"


def learner_roles(models: Iterable[str]) -> dict[str, str]:
    """The models that learners train, by the role of each: one learner is ``learner``, of several each has its own."""
    names = list(dict.fromkeys(models))
    return {LEARNER: names[0]} if len(names) == 1 else {learner_role(model): model for model in names}


def can_sign(role: str, event: Event) -> bool:
    """Whether a role may write an event.

    A learner writes manifests of its model, a node canary verdicts, the auditor convictions, an admin any decision.
    Prompts and the decisions on them are an admin's: agents run what they say.
    """
    if isinstance(event, (PromptVersion, PromptReleaseState)):
        return role == ADMIN
    if isinstance(event, WeightManifest):
        return role in (LEARNER, learner_role(event.model))
    if isinstance(event, ReleaseState) and event.decisions:
        action = event.decisions[-1].action
        return role == ADMIN or (role == INFERENCE and action in VERDICTS) or (role == AUDITOR and action == "revoked")
    if isinstance(event, AuditState):
        is_overturning = bool(event.verdicts) and event.verdicts[-1].action == "overturned"
        return role == ADMIN or (role == AUDITOR and not is_overturning)
    return False


def bytes_to_sign(subject: str, after: int, payload: bytes) -> bytes:
    """The bytes that a signature covers: a message on exactly this subject that follows sequence ``after``.

    So the signature is invalid on any other subject, and for the same message sent once more.
    """
    return b"\n".join((_CONTEXT, subject.encode(), str(after).encode(), payload))


def role_of(key: str, signers: Mapping[str, Sequence[str]]) -> str:
    """The role that a public key belongs to; empty if none."""
    return next((role for role, keys in signers.items() if key in keys), "")
