"""Publishing of weight versions: the bytes by a transport, then the manifest, by compare-and-set."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError, FencedError, StreamFullError
from lightningbus.bus.jetstream.verified_download import sha256_of
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.bus.weights.signed_log import Entry, SignedLog
from lightningbus.bus.weights.transports.factory import open_transport
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.publishing.broadcaster import Broadcaster
from lightningbus.learner.publishing.delta_chain import (
    SUFFIX,
    DeltaChain,
    blob_name,
    filter_model,
    link_or_copy,
    parse_version,
    versions_to_delete,
)
from lightningbus.learner.publishing.weight_change import estimate_change
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.codec import encode
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.delta import fingerprint
from lightningbus.schemas.weights.events import Blob, CanarySpec, DeltaLink, WeightManifest
from lightningbus.schemas.weights.release_policy import latest_verdict, versions_to_retain
from lightningbus.schemas.weights.safetensors_header import InvalidSafetensorsError

log = logging.getLogger(__name__)

BUCKET = subjects.WEIGHT_BUCKET
NONCE_BYTES = 16
"""Random bytes in a message id, so that no other process can guess it."""
REPLICA_POLL_SECONDS = 1.0
"""Seconds before a stream that did not answer is asked again."""
PUBLISHED = ".published.safetensors"
"""File of the newest version, beside the checkpoints: it is published again if the bus loses it."""


class WeightPublisher:
    """The one writer of a model's versions; a second one is fenced off by the stream."""

    def __init__(
        self,
        bus: Bus,
        settings: LearnerSettings,
        full_weights_requested: Callable[[], bool] = lambda: False,
        broadcaster: Broadcaster | None = None,
    ) -> None:
        """Prepare to publish; ``full_weights_requested`` returns whether a node needs a version without deltas."""
        self._bus, self._settings, self._full_weights_requested, self._broadcaster = (
            bus,
            settings,
            full_weights_requested,
            broadcaster,
        )
        self._subject = subjects.weights(settings.model)
        self._versions = SignedLog(bus, self._subject, settings.model, WeightManifest, from_leader=True)
        self._last_sequence = 0
        try:
            self._transport = open_transport(bus, settings.weights.transport, settings.weights.location)
        except BusError as error:
            raise LearnerError(f"weights: {error}") from error
        self._chain = DeltaChain(settings.checkpoint_dir, settings.weights.full_interval)
        self._blob_names: list[str] = []
        self._releases = WeightRegistry(bus, settings.model)
        self._base: tuple[Blob, ...] = ()
        self._base_path: Path | None = None
        self._file = settings.checkpoint_dir / PUBLISHED
        self._has_last_file = False
        """Whether ``_file`` is the file of ``last``."""
        self._lock = asyncio.Lock()
        self.last: WeightManifest | None = None

    async def refresh(self) -> WeightManifest | None:
        """Read the newest version on the bus; the next publish replaces exactly that one."""
        last = await self._versions.get_last()
        newest = await anext(self._versions.newest_first(last), None)
        self.last = newest.event if newest is not None else None
        self._last_sequence = last.sequence if last is not None else 0
        self._blob_names = filter_model(self._settings.model, await self._transport.list_names(BUCKET))
        await self._releases.refresh()
        return self.last

    @property
    def next_served(self) -> int | None:
        """The version that a node which starts now begins with: the newest, or an older one that is pinned.

        None: there is none. A pin counts from the next publish on.
        """
        if self.last is None:
            return None
        pinned = self._releases.state.pinned
        return self.last.version if pinned is None else min(pinned, self.last.version)

    async def wait_until_fenced(self, epoch: int) -> None:
        """Wait until a learner of a newer epoch has published, then raise `LearnerError`: this one must stop."""
        claimed = asyncio.Event()

        async def on_message(message: Msg) -> None:
            claimed.set()

        watching = await self._bus.nc.subscribe(self._subject, cb=on_message)
        try:
            while True:
                await claimed.wait()
                claimed.clear()
                # What is heard may have been refused, by compare-and-set: the stream says what was not.
                try:
                    await self.check_newest(epoch)
                except (BusError, NatsError):
                    await asyncio.sleep(REPLICA_POLL_SECONDS)
                    claimed.set()
        finally:
            if self._bus.nc.is_connected:
                await watching.unsubscribe()

    async def check_newest(self, epoch: int) -> None:
        """Raise `LearnerError` if a learner of a newer epoch has published; `BusError` or nats' errors: not known."""
        newest = await anext(self._versions.newest_first(await self._versions.get_last()), None)
        if newest is not None and newest.event.epoch > epoch:
            raise fenced_error(self._settings.model, epoch)

    async def publish_base(self, path: Path) -> None:
        """Publish the base of all later versions' adapters; it stays where versions are."""
        self._base_path = path
        self._base = (await self._transport.put(BUCKET, f"{self._settings.model}-base", path),)

    async def publish(
        self, path: Path, *, version: int, epoch: int, step: int, canary: CanarySpec | None = None
    ) -> None:
        """Publish a safetensors file as a version, whole or as a delta to the last one that this learner published.

        The file is only ever replaced, not written to again. With a ``canary`` nodes wait until one has tried it.
        Raises `FencedError` when another learner has published since the last refresh.
        """
        async with self._lock:
            await self._publish(path, version, epoch, step, canary)

    async def claim(self, epoch: int) -> None:
        """Publish the newest version again, under this learner's own epoch; raise as `publish`."""
        async with self._lock:
            assert self.last is not None
            manifest = replace(self.last, epoch=epoch, broadcast=None, created_at_ns=time.time_ns())
            await self._replace_last(manifest)
            self.last = manifest
            self._has_last_file = await asyncio.to_thread(_is_file_of, manifest, self._file)

    async def keep_published(self, was_reset: asyncio.Event) -> None:
        """Publish the newest version again whenever the bus has lost it, for ever; looks each time the event is set.

        Raises `LearnerError` when another learner has published since.
        """
        while True:
            await was_reset.wait()
            was_reset.clear()
            try:
                async with self._lock:
                    if self.last is not None and not await self._is_on_bus(self.last):
                        await self._publish_again(self.last)
            except FencedError as error:
                raise fenced_error(self._settings.model, self.last.epoch if self.last else 0) from error
            except (BusError, NatsError) as error:
                log.warning(
                    "whether the bus has the newest version is not known yet: %s", error or type(error).__name__
                )
                await asyncio.sleep(REPLICA_POLL_SECONDS)
                was_reset.set()

    async def _is_on_bus(self, version: WeightManifest) -> bool:
        """Return whether nodes can fetch a version, or a newer learner's."""
        last = await self._versions.get_last()
        if last is None or (last.sequence, last.data) != (self._last_sequence, encode(version)):
            newest = await anext(self._versions.newest_first(last), None)
            if newest is None or (newest.event.epoch, newest.event.version) < (version.epoch, version.version):
                return False
            if newest.event.epoch > version.epoch:
                return True
        names = await self._transport.list_names(BUCKET)
        return all(blob.name in names for blob in (*version.blobs, *(link.blob for link in version.chain)))

    async def _publish_again(self, lost: WeightManifest) -> None:
        if not self._has_last_file:
            log.warning("the bus lost version %d, and its file is not here: nodes wait for the next one", lost.version)
            return
        if self._base_path is not None:
            await self.publish_base(self._base_path)
        name = blob_name(lost.model, lost.version, lost.epoch)
        blob = await self._transport.put(BUCKET, name, self._file)
        manifest = replace(
            lost, kind="lora" if self._base else "full", blobs=(*self._base, blob), chain=(), broadcast=None,
            created_at_ns=time.time_ns(),
        )  # fmt: skip
        await self._replace_last(manifest)
        self.last = manifest
        self._blob_names = filter_model(lost.model, await self._transport.list_names(BUCKET))
        if not self._base:
            link = DeltaLink(version=lost.version, fingerprint=lost.fingerprint, blob=blob)
            await self._chain.record_published(link, self._file, whole=True)
        log.warning("the bus lost version %d: it is published again", lost.version)

    async def _publish(self, path: Path, version: int, epoch: int, step: int, canary: CanarySpec | None) -> None:
        model, weights = self._settings.model, self._settings.weights
        delta = None if self._base or self._full_weights_requested() else await self._chain.delta_to(path)
        name = blob_name(model, version, epoch) + (SUFFIX if delta else "")
        blob = await self._transport.put(BUCKET, name, delta or path)
        content = "" if self._base else await asyncio.to_thread(fingerprint, path)
        parent = self.last.version if self.last is not None and self.last.version < version else None
        change = None if parent is None or self._base else await self._estimate_change(path)
        plan = None
        if self._broadcaster and canary is None:  # one node loads a version on trial before the others
            plan = await self._broadcaster.plan(path, version, epoch, parent)
        manifest = WeightManifest(
            run_id=self._settings.run,
            model=model,
            version=version,
            parent=parent,
            change=change,
            kind="lora" if self._base else "delta" if delta else "full",
            transport=weights.transport,
            location=weights.location,
            blobs=(*self._base, blob),
            chain=self._chain.links if delta else (),
            fingerprint=content,
            broadcast=plan,
            epoch=epoch,
            step=step,
            created_at_ns=time.time_ns(),
            canary=canary,
        )
        await self._replace_last(manifest)
        self.last = manifest
        await asyncio.to_thread(link_or_copy, path, self._file)
        self._has_last_file = True
        if self._broadcaster:
            self._broadcaster.start(manifest)
        if not self._base:
            await self._chain.record_published(
                DeltaLink(version=version, fingerprint=content, blob=blob), path, whole=delta is None
            )
        try:
            await self._expire(blob.name)
        except (BusError, NatsError) as error:  # the version is out; the next one has more to remove
            log.warning("old versions are not removed: %s", str(error) or type(error).__name__)

    async def _estimate_change(self, path: Path) -> float | None:
        """Estimate the change from the newest version to a file; None where it is unknown, as after a restart."""
        if not self._has_last_file:
            return None
        try:
            return await asyncio.to_thread(estimate_change, self._file, path)
        except (OSError, InvalidSafetensorsError) as error:
            log.warning("how far the next version is from the last one is not known: %s", error)
            return None

    async def _replace_last(self, manifest: WeightManifest) -> None:
        """Publish by compare-and-set, also over invalid entries; raises `FencedError` for another learner's version.

        On a bus that lost this learner's last version it goes after what the bus has kept.
        """
        msg_id = ids.weight_msg_id(manifest.model, manifest.epoch, manifest.version, secrets.token_hex(NONCE_BYTES))
        while True:
            try:
                self._last_sequence = await self._bus.publish(
                    self._subject, manifest, msg_id=msg_id, expect_last=self._last_sequence, unique=True
                )
            except FencedError:
                last = await self._versions.get_last()
                newest = await anext(self._versions.newest_first(last), None)
                sequence = last.sequence if last is not None else 0
                if sequence == self._last_sequence or (newest is not None and self._is_overtaken(newest, manifest)):
                    raise
                log.warning("%s ends at %d now, which is no version", self._subject, sequence)
                self._last_sequence = sequence
            except StreamFullError as error:  # the step is made: it waits for room
                log.warning("%s", error)
            else:
                return

    def _is_overtaken(self, newest: Entry[WeightManifest], manifest: WeightManifest) -> bool:
        return newest.sequence > self._last_sequence or newest.event.epoch > manifest.epoch

    async def _expire(self, newest: str) -> None:
        self._blob_names = [*(name for name in self._blob_names if name != newest), newest]
        model, release = self._settings.model, await self._releases.refresh()
        before = self.last.parent if self.last is not None else None
        if (
            before is not None
            and (decision := latest_verdict(release, before)) is not None
            and decision.action == "revoked"
        ):
            log.warning("version %d was revoked: %s; training goes on from its weights", before, decision.reason)
        fallback = versions_to_retain(release, (parse_version(model, name) for name in self._blob_names[:-1]))
        gone = versions_to_delete(
            self._blob_names,
            self._settings.keep_weight_versions,
            [name for name in self._blob_names if parse_version(model, name) in fallback],
        )
        for name in gone:
            await self._transport.delete(BUCKET, name)
        self._blob_names = [name for name in self._blob_names if name not in gone]


def _is_file_of(manifest: WeightManifest, path: Path) -> bool:
    try:
        if manifest.fingerprint:
            return fingerprint(path) == manifest.fingerprint
        return sha256_of(path) == manifest.blobs[-1].sha256
    except (OSError, InvalidSafetensorsError):
        return False


def fenced_error(model: str, epoch: int) -> LearnerError:
    """Word the error with which a learner of an older epoch stops."""
    return LearnerError(f"another learner has published model {model!r} since: this one, of epoch {epoch}, stops")


def needs_full_weights(beat: Heartbeat, model: str) -> bool:
    """Return whether a node cannot use the offered deltas of a model."""
    return beat.role == "inference" and beat.model == model and bool(beat.status.get("needs_full_weights"))
