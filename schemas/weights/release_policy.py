"""Versions of a model or a prompt that may be served, given the decisions about them. Pure."""

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from lightningbus.schemas.weights.events import ReleaseDecision, ReleaseHistory

MAX_DECISIONS: Final = 100
"""Decisions that are kept: far more than there are versions whose files still exist."""
VERDICTS = ("approved", "revoked")
EVALUATE_ACTOR: Final = "evaluate"
"""Actor that pins a version for an evaluation, in the record of decisions."""
TRAIN_ACTOR: Final = "train:"
"""Begins the name of a training job that pins a version for its held-out tasks."""
R = TypeVar("R", bound=ReleaseHistory)


class VersionManifest(Protocol):
    """Record of a version: a weight manifest, or the version of a prompt."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def canary(self) -> object | None:
        """The canary test required before it is served; None: no test."""


def apply_decision(release: R, decision: ReleaseDecision) -> R:
    """Apply one more decision to a state; revoking a version unpins it."""
    pinned = release.pinned
    if decision.action == "pinned":
        pinned = decision.version
    elif decision.action == "unpinned" or (decision.action == "revoked" and decision.version == pinned):
        pinned = None
    kept = decision.version if decision.action == "kept" else release.kept
    return replace(release, pinned=pinned, kept=kept, decisions=(*release.decisions, decision)[-MAX_DECISIONS:])


def is_successor(before: ReleaseHistory, after: ReleaseHistory) -> bool:
    """Return whether ``after`` is ``before`` with exactly one more decision, and no other change."""
    return bool(after.decisions) and after == apply_decision(before, after.decisions[-1])


def latest_verdict(release: ReleaseHistory, version: int) -> ReleaseDecision | None:
    """Return the last decision that approved or revoked a version."""
    verdicts = (
        decision
        for decision in reversed(release.decisions)
        if decision.version == version and decision.action in VERDICTS
    )
    return next(verdicts, None)


def is_revoked(release: ReleaseHistory, version: int) -> bool:
    """Return whether a version must not be served."""
    verdict = latest_verdict(release, version)
    return verdict is not None and verdict.action == "revoked"


def is_servable(release: ReleaseHistory, manifest: VersionManifest) -> bool:
    """Return whether a version may be served: it is not revoked and, if it needs a canary, it is approved."""
    verdict = latest_verdict(release, manifest.version)
    return manifest.canary is None if verdict is None else verdict.action == "approved"


def is_pending_canary(release: ReleaseHistory, manifest: VersionManifest) -> bool:
    """Return whether a version needs a canary that has not run yet."""
    return manifest.canary is not None and latest_verdict(release, manifest.version) is None


def versions_to_retain(release: ReleaseHistory, versions: Iterable[int]) -> set[int]:
    """Choose the versions whose files are kept: the best so far, and fallbacks if newer ones are revoked."""
    existing = set(versions)
    not_revoked = {version for version in existing if not is_revoked(release, version)}
    approved = {decision.version for decision in release.decisions if _is_approval(decision)} & not_revoked
    pinned = {release.pinned} & existing if release.pinned is not None else set()
    kept = {release.kept} & not_revoked if release.kept is not None else set()
    return {*pinned, *kept, *([max(approved)] if approved else []), *([max(not_revoked)] if not_revoked else [])}


def find_pin(release: ReleaseHistory) -> ReleaseDecision | None:
    """Return the decision that pinned the version that is pinned now; None: none is, or it is not on record."""
    if release.pinned is None:
        return None
    return next((decision for decision in reversed(release.decisions) if decision.action == "pinned"), None)


def is_temporary(pin: ReleaseDecision) -> bool:
    """Return whether whoever pinned the version unpins it by itself, at the end of an evaluation."""
    return pin.actor == EVALUATE_ACTOR or pin.actor.startswith(TRAIN_ACTOR)


def last_approved_length(release: ReleaseHistory) -> float | None:
    """Return the mean length of answers of the version that a canary approved last; None before the first."""
    lengths = (
        decision.metrics["length"] for decision in reversed(release.decisions) if _passed_canary(release, decision)
    )
    return next(lengths, None)


def _is_approval(decision: ReleaseDecision) -> bool:
    """Return whether a person or a trial of its answers approved a version; an engine check judges the engine."""
    return decision.action == "approved" and ("length" in decision.metrics or not decision.metrics)


def _passed_canary(release: ReleaseHistory, decision: ReleaseDecision) -> bool:
    return decision.action == "approved" and "length" in decision.metrics and not is_revoked(release, decision.version)
