"""Weight versions of a model on the bus: decisions about them, and the nodes that serve them."""

from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lightningbus.bus.client import Bus
from lightningbus.bus.jetstream.batch_get import batch_get, sequence_of
from lightningbus.bus.weights.signed_log import SignedLog
from lightningbus.bus.weights.transports.factory import open_transport
from lightningbus.bus.weights.version_registry import (
    RESPONSE_TIMEOUT_SECONDS,
    VersionRegistry,
    VersionTarget,
)
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import DecodeError, decode
from lightningbus.schemas.weights.events import ReleaseState, SwapLockState, WeightManifest, WeightsActivated

E = TypeVar("E", bound=Event)
BATCH = 500

ServingTarget = VersionTarget[WeightManifest]
"""The version that nodes should serve now, and the canary's; None: nothing."""


class WeightRegistry(VersionRegistry[WeightManifest, ReleaseState]):
    """Versions of a model, and which of them may be served."""

    stream, noun, command = subjects.WEIGHTS, "model", "weights list"

    def __init__(self, bus: Bus, model: str) -> None:
        super().__init__(
            bus,
            model,
            SignedLog(bus, subjects.weights(model), model, WeightManifest),
            SignedLog(bus, subjects.release(model), model, ReleaseState),
            ReleaseState(model=model),
        )

    def _logs(self) -> list[SignedLog[Any]]:
        locks = SignedLog(self._bus, subjects.swap_lock(self._name), self._name, SwapLockState)
        return [*super()._logs(), locks]

    async def find_expired_blob(self, manifest: WeightManifest) -> str:
        """Name a file of a version that has expired; empty: all exist, or this host cannot know."""
        if not can_list_files(manifest):
            return ""
        transport = open_transport(self._bus, manifest.transport, manifest.location)
        needed = {(blob.bucket, blob.name) for blob in (*manifest.blobs, *(link.blob for link in manifest.chain))}
        stored = {
            (bucket, name) for bucket in {bucket for bucket, _ in needed} for name in await transport.list_names(bucket)
        }
        return min((name for _, name in needed - stored), default="")

    async def activations_of(self, since: int, version: int) -> list[WeightsActivated]:
        """List the activations of a version in order; ``since`` is the sequence of its oldest manifest."""
        activations: list[WeightsActivated] = []
        while True:
            request = {"batch": BATCH, "seq": since + 1, "next_by_subj": subjects.ALL_ACTIVATIONS}
            page = await _batched_direct_get(self._bus, request, WeightsActivated)
            activations += [event for event, _ in page if (event.model, event.version) == (self._name, version)]
            if len(page) < BATCH:
                return activations
            since = page[-1][1]


def can_list_files(manifest: WeightManifest) -> bool:
    """Return whether this host can list a version's files: they are on the bus, or in a local directory."""
    return manifest.transport == "bus" or (manifest.transport == "file" and Path(manifest.location).is_dir())


async def list_models(bus: Bus) -> list[str]:
    """List the models that have versions on a bus, by name."""
    request: dict[str, object] = {"batch": BATCH, "multi_last": [subjects.ALL_WEIGHTS]}
    return sorted({manifest.model for manifest, _ in await _batched_direct_get(bus, request, WeightManifest)})


async def _batched_direct_get(bus: Bus, request: dict[str, object], kind: type[E]) -> list[tuple[E, int]]:
    """Fetch the events that a request for several messages of WEIGHTS matches, with their sequences."""
    events: list[tuple[E, int]] = []
    async with batch_get(bus.nc, subjects.WEIGHTS, request, RESPONSE_TIMEOUT_SECONDS) as messages:
        async for message in messages:
            with suppress(DecodeError):
                events.append((decode(kind, message.data), sequence_of(message)))
    return events
