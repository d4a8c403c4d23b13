"""Choice of the weight version that a node loads next, and of the steps to load it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightningbus.schemas.weights.events import ReleaseState, WeightManifest
from lightningbus.schemas.weights.release_policy import is_servable


@dataclass(frozen=True)
class PendingUpdate:
    """A version to be served, or to be tried as a canary."""

    manifest: WeightManifest
    is_canary: bool
    files: Sequence[Path] = ()
    """Verified. Empty before the fetch, and for a version that came by a broadcast."""
    fetch_seconds: float = 0.0
    verify_seconds: float = 0.0

    @property
    def version(self) -> int:
        """The version's number."""
        return self.manifest.version


@dataclass(frozen=True)
class CanaryBackoff:
    """A version that this node does not try as a canary before a time of `time.monotonic`."""

    version: int
    until: float


def plan_update(
    serve: WeightManifest | None,
    canary: WeightManifest | None,
    active: PendingUpdate | None,
    backoff: CanaryBackoff | None,
    now: float,
) -> PendingUpdate | None:
    """Choose the version to serve if it is not active yet, else the canary to try, else None.

    ``canary`` is None on a node that tries no versions.
    """
    if serve is not None and (active is None or serve.version != active.version):
        return PendingUpdate(serve, is_canary=False)
    if canary is None or (backoff is not None and canary.version == backoff.version and now < backoff.until):
        return None
    return PendingUpdate(canary, is_canary=True)


def follows_active(update: PendingUpdate, active: PendingUpdate | None) -> bool:
    """Return whether the node can join the update's broadcast, which sends only changes to the version before it."""
    manifest, version = update.manifest, None if active is None else active.version
    return not update.is_canary and manifest.broadcast is not None and manifest.parent == version


def find_change(update: PendingUpdate, active: PendingUpdate | None) -> float | None:
    """Return the relative change from the active weights to the update's; None: unknown."""
    return update.manifest.change if active is not None and update.manifest.parent == active.version else None


def interrupts_calls(update: PendingUpdate, active: PendingUpdate | None) -> bool:
    """Return whether calls pause while it is loaded: always, except for adapters on the loaded base."""
    base = () if active is None else active.manifest.blobs[:-1]
    return update.manifest.kind != "lora" or update.manifest.blobs[:-1] != base


def is_still_progress(
    update: PendingUpdate, desired: PendingUpdate, active: PendingUpdate | None, release: ReleaseState
) -> bool:
    """Return whether to load a fetched version although a newer one is desired by now.

    Versions may arrive faster than a node acquires the lock: a node that started over for each would never swap.
    """
    active_version = -1 if active is None else active.version
    is_between = active_version < update.version < desired.version
    return is_between and not update.is_canary and release.pinned is None and is_servable(release, update.manifest)
