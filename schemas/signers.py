"""Signatures: the messages that need one, the roles that may sign, and the bytes covered. Pure.

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
    """Name the role of a model's learner where learners train several models."""
    return f"{LEARNER}-{model}"


def learner_roles(models: Iterable[str]) -> dict[str, str]:
    """Map each learner's role to its model: a single learner is ``learner``, several have a role each."""
    names = list(dict.fromkeys(models))
    return {LEARNER: names[0]} if len(names) == 1 else {learner_role(model): model for model in names}


def can_sign(role: str, event: Event) -> bool:
    """Return whether a role may write an event.

    A learner writes manifests of its model, a node canary verdicts, the auditor convictions, an admin any decision.
    Only an admin writes prompts and decisions on them, because agents execute them.
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
    """Build the bytes that a signature covers: a message on exactly this subject that follows sequence ``after``.

    So the signature is invalid on any other subject, and for a repetition of the same message.
    """
    return b"\n".join((_CONTEXT, subject.encode(), str(after).encode(), payload))


def role_of(key: str, signers: Mapping[str, Sequence[str]]) -> str:
    """Return the role that a public key belongs to; empty if none."""
    return next((role for role, keys in signers.items() if key in keys), "")
