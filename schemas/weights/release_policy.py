"""Which versions of a model may be served: what was decided, and what follows from it. Pure."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from schemas.weights.events import ReleaseDecision, ReleaseState, WeightManifest

KEPT: Final = 100
"""Decisions that are remembered: far more than there are versions whose files are still kept."""
VERDICTS = ("released", "revoked")


def decided(release: ReleaseState, decision: ReleaseDecision) -> ReleaseState:
    """What holds after one more decision; a version that is revoked is not pinned any more."""
    pinned = release.pinned
    if decision.action == "pinned":
        pinned = decision.version
    elif decision.action == "unpinned" or (decision.action == "revoked" and decision.version == pinned):
        pinned = None
    return replace(release, pinned=pinned, decisions=(*release.decisions, decision)[-KEPT:])


def follows(before: ReleaseState, after: ReleaseState) -> bool:
    """Whether a release is what was decided before and one decision more, with nothing left out or changed."""
    return bool(after.decisions) and after == decided(before, after.decisions[-1])


def verdict(release: ReleaseState, version: int) -> ReleaseDecision | None:
    """The last word on a version: that it is released or revoked; None if there is none."""
    said = (one for one in reversed(release.decisions) if one.version == version and one.action in VERDICTS)
    return next(said, None)


def is_revoked(release: ReleaseState, version: int) -> bool:
    """Whether nobody may serve it."""
    said = verdict(release, version)
    return said is not None and said.action == "revoked"


def stands(release: ReleaseState, manifest: WeightManifest) -> bool:
    """Whether a version may be served: not revoked and, if it is to be tried first, released."""
    said = verdict(release, manifest.version)
    return manifest.canary is None if said is None else said.action == "released"


def awaits(release: ReleaseState, manifest: WeightManifest) -> bool:
    """Whether a version is still to be tried."""
    return manifest.canary is not None and verdict(release, manifest.version) is None


def needed(release: ReleaseState, versions: Iterable[int]) -> set[int]:
    """Of the versions whose files are there, those that nodes may have to go to whatever is decided of newer ones."""
    there = set(versions)
    standing = {version for version in there if not is_revoked(release, version)}
    released = {one.version for one in release.decisions if one.action == "released"} & standing
    pinned = {release.pinned} & there if release.pinned is not None else set()
    return {*pinned, *([max(released)] if released else []), *([max(standing)] if standing else [])}


def length_released(release: ReleaseState) -> float | None:
    """Mean length of the answers of the version that a trial released last; None before there is one."""
    told = (one.metrics["length"] for one in reversed(release.decisions) if _passed(release, one))
    return next(told, None)


def _passed(release: ReleaseState, one: ReleaseDecision) -> bool:
    return one.action == "released" and "length" in one.metrics and not is_revoked(release, one.version)
