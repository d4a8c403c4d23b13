"""Which messages are signed, by whom, and over which bytes. Pure.

The bus may be anybody's, so whoever serves weights believes the key of who wrote them, and not the bus.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from schemas.base import Event
from schemas.weights.events import ReleaseState, WeightManifest
from schemas.weights.release_policy import VERDICTS

LEARNER, NODE, ADMIN = "learner", "node", "admin"
SIGNERS: Final = (LEARNER, NODE, ADMIN)
"""Roles with a signing key."""
SIGNED: Final = (WeightManifest, ReleaseState)
_CONTEXT = b"lightningbus signature 1"


def may_sign(role: str, event: Event) -> bool:
    """Whether a role may write an event: the learner versions, a node verdicts of its trials, an admin any decision."""
    if isinstance(event, WeightManifest):
        return role == LEARNER
    if isinstance(event, ReleaseState) and event.decisions:
        return role == ADMIN or (role == NODE and event.decisions[-1].action in VERDICTS)
    return False


def signed_bytes(subject: str, after: int, payload: bytes) -> bytes:
    """What a signature is over: a message on exactly this subject, which follows the message of sequence ``after``.

    So it holds on no other subject, nor when the same message is sent once more.
    """
    return b"\n".join((_CONTEXT, subject.encode(), str(after).encode(), payload))


def role_of(key: str, signers: Mapping[str, Sequence[str]]) -> str:
    """Whose public key it is; empty: nobody's."""
    return next((role for role, keys in signers.items() if key in keys), "")
