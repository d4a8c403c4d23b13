"""Follows the weight versions of a model: fetches the files while the old version serves, then loads them.

The version to serve is the pinned one, or else the newest that may be served
(`lightningbus.schemas.weights.release_policy`), so a node may also go back. Of the nodes that serve, one swaps at a
time (`lightningbus.inference.weights.swap_lock`). A canary is tried by the first node that holds the lock; its verdict
applies to all nodes.
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.verified_download import measure_verification
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.bus.weights.version_cache import BaseFiles, WeightCache
from lightningbus.common.observability import metrics, tracing
from lightningbus.common.observability.faults import count_fault
from lightningbus.inference.engine.base import EngineError, EngineRejectedError
from lightningbus.inference.weights.canary import Canary, CanaryResult
from lightningbus.inference.weights.plan import (
    CanaryBackoff,
    PendingUpdate,
    find_change,
    follows_active,
    interrupts_calls,
    is_still_progress,
    plan_update,
)
from lightningbus.inference.weights.swap_lock import SwapLock
from lightningbus.inference.weights.target import WeightTarget
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import encode
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.text import shorten_line
from lightningbus.schemas.weights.events import WeightsActivated
from lightningbus.schemas.weights.release_policy import is_revoked, is_servable, last_approved_length

log = logging.getLogger(__name__)

RECHECK_SECONDS = 5.0
"""Seconds between two checks of the newest version: notifications are hints, the stream decides."""

CANARY_BACKOFF_SECONDS = 60.0
"""Seconds for which a node that could not finish a canary trial leaves that version to other nodes."""

NOTIFICATION_LAG_SECONDS = (0.02, 0.1, 0.5, 1.5)
"""A notification may arrive before the stream can be read up to it: the stream is read again after these pauses."""


class WeightUpdater:
    """Keeps the engine at the desired version: compares it with the active one, and acts."""

    def __init__(
        self, bus: Bus, node_id: str, model: str, directory: Path, target: WeightTarget, bases: BaseFiles | None = None
    ) -> None:
        """Prepare the updater; ``node_id`` is the id of this node's heartbeat, ``bases`` are shared by its models."""
        self._bus, self._node_id, self._model, self._target = bus, node_id, model, target
        self._cache = WeightCache(bus, model, directory, bases)
        self._releases = WeightRegistry(bus, model)
        self._swap_lock = SwapLock(bus, node_id, model)
        self._wakeup = asyncio.Event()
        self._active: PendingUpdate | None = None
        self._canary_backoff: CanaryBackoff | None = None
        self.problem = ""
        self.needs_full_weights = False
        """The newest version is a delta that cannot be reconstructed here, not even from the last full version."""

    @property
    def last_error(self) -> str:
        """Sentence about the obstacle between this node and the newest version; empty: none."""
        return self.problem or self._releases.problem

    @property
    def version(self) -> int | None:
        """The version that is served; None: none yet."""
        return self._active.version if self._active is not None else None

    async def run(self) -> None:
        """Run until cancelled; raises `EngineError`."""
        self._cache.clear()
        handlers = {
            subjects.weights(self._model): self._on_notification,
            subjects.release(self._model): self._on_release,
        }
        subscriptions = [await self._bus.nc.subscribe(subject, cb=handler) for subject, handler in handlers.items()]
        try:
            async with self._swap_lock:
                await self._reconcile_loop()
        finally:
            if self._bus.nc.is_connected:
                for subscription in subscriptions:
                    await subscription.unsubscribe()

    async def _reconcile_loop(self) -> None:
        pauses = iter(NOTIFICATION_LAG_SECONDS)
        while True:
            if self._wakeup.is_set():
                self._wakeup.clear()
                pauses = iter(NOTIFICATION_LAG_SECONDS)
            if await self._reconcile_once():
                continue
            try:
                async with asyncio.timeout(next(pauses, RECHECK_SECONDS)):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    async def _on_notification(self, message: Msg) -> None:
        self._wakeup.set()

    async def _on_release(self, message: Msg) -> None:
        """Apply the release state at once, because this node may be waiting for capacity to load a version.

        The message is not trusted: the stream may have refused it.
        """
        self._wakeup.set()
        for pause in NOTIFICATION_LAG_SECONDS:
            with suppress(BusError, NatsError):
                release = await self._releases.refresh()
                self._target.on_release_state(release)
                if encode(release) == message.data:
                    return
            await asyncio.sleep(pause)

    async def _reconcile_once(self) -> bool:
        """Take one step to the desired version; return False if there is none to take.

        The old version continues to be served if a file is missing or corrupt.
        """
        try:
            await self._swap_lock.release_stale()
            update = await self._desired()
            if (update is None or update.is_canary) and await self._stop_serving_revoked():
                return True
            if update is None:
                return False
            span_attributes: tracing.Attributes = {
                attributes.WEIGHT_VERSION: update.version,
                attributes.NODE: self._node_id,
            }
            with tracing.start_as_current_span("version", span_attributes):
                return await self._update_to(update)
        except EngineError:
            raise
        except Exception as error:
            if not isinstance(error, (BusError, NatsError, OSError, ValueError)):
                count_fault("a weight version", error)
            metrics.weight_fetch_failures.inc()
            self.problem = f"weights not fetched: {error}"
            log.warning("%s; version %s goes on serving", self.problem, self.version)
            return False

    async def _desired(self) -> PendingUpdate | None:
        choice = await self._releases.resolve_target()
        self._target.on_release_state(self._releases.state)
        canary = choice.canary if self._target.canary is not None else None
        return plan_update(choice.serve, canary, self._active, self._canary_backoff, time.monotonic())

    async def _stop_serving_revoked(self) -> bool:
        """Stop serving if the active version was revoked; only called where no other version may be served."""
        version = self.version
        if version is None or self._target.canary is None or not is_revoked(self._releases.state, version):
            return False
        await self._target.canary.drain_traffic()
        self._active = None
        await self._target.canary.await_next_version()
        self.problem = f"version {version} was revoked, and no other stands"
        log.warning("%s", self.problem)
        return True

    async def _update_to(self, update: PendingUpdate) -> bool:
        if follows_active(update, self._active) and await self._join_broadcast(update):
            return True
        update = await self._fetch(update)
        pauses_calls = self._target.needs_swap_lock or interrupts_calls(update, self._active)
        # A node that serves nothing may swap without the lock: the others do not depend on it.
        if not update.is_canary and (self._active is None or not pauses_calls):
            return await self._load_if_still_desired(update)
        async with self._swap_lock.hold():
            return await self._load_if_still_desired(update)

    async def _join_broadcast(self, update: PendingUpdate) -> bool:
        """Receive the version together with all nodes that have a rank; False: it must be fetched."""
        with tracing.start_as_current_span("broadcast"):
            pause_seconds = await self._target.join_broadcast(update.manifest)
        if pause_seconds is None:
            return False
        await self._activate(update, pause_seconds)
        return True

    async def _fetch(self, update: PendingUpdate) -> PendingUpdate:
        started_at = time.monotonic()
        try:
            with tracing.start_as_current_span("fetch and verify"), measure_verification() as verification:
                files = await self._cache.ensure(update.manifest)
        except (BusError, NatsError, OSError, ValueError):
            self.needs_full_weights = self.needs_full_weights or update.manifest.kind == "delta"
            raise
        total_seconds, verify_seconds = time.monotonic() - started_at, verification.seconds
        fetch_seconds = max(0.0, total_seconds - verify_seconds)
        return replace(update, files=files, fetch_seconds=fetch_seconds, verify_seconds=verify_seconds)

    async def _load_if_still_desired(self, update: PendingUpdate) -> bool:
        """Load, unless another decision was made during the fetch or the wait for the lock."""
        desired = await self._desired()
        if desired is None:
            return False
        is_same = desired.version == update.version
        if is_same and desired.is_canary:
            await self._run_canary(update)
        elif is_same or is_still_progress(update, desired, self._active, self._releases.state):
            await self._load_and_activate(update)
        return True

    async def _load_and_activate(self, update: PendingUpdate) -> None:
        await self._activate(update, await self._load(update))

    async def _load(self, update: PendingUpdate) -> float:
        with tracing.start_as_current_span("swap"):
            change, manifest = find_change(update, self._active), update.manifest
            return await self._target.load_files(update.files, update.version, change, manifest.fingerprint)

    async def _activate(self, update: PendingUpdate, pause_seconds: float) -> None:
        self._active, self.problem, self.needs_full_weights = update, "", False
        metrics.inference_weight_version.labels(self._model).set(update.version)
        metrics.weight_fetch.observe(update.fetch_seconds + update.verify_seconds)
        metrics.swap_pause.observe(pause_seconds)
        log.info(
            "version %d: fetched in %.3f s, paused for %.3f s", update.version, update.fetch_seconds, pause_seconds
        )
        await self._publish_activated(update, pause_seconds)
        if update.files:  # after a broadcast, the files of the last fetched version stay: a delta may start from them
            self._cache.evict_except(update.files)
        await self._target.on_activated()

    async def _run_canary(self, update: PendingUpdate) -> None:
        """Load a version, evaluate it, publish the verdict; roll back if it may not be served.

        Calls are aborted meanwhile, except for an engine check: where that fails, the learner ends, and nothing that
        was sampled is trained.
        """
        canary, manifest, version = self._target.canary, update.manifest, update.version
        assert canary is not None and manifest.canary is not None
        self._canary_backoff = CanaryBackoff(version, time.monotonic() + CANARY_BACKOFF_SECONDS)
        is_kv_cache_tainted = False
        is_serving = manifest.canary.is_engine_check and self._active is not None
        if not is_serving:
            await canary.drain_traffic()
        try:
            pause_seconds = await self._load(update)
            with tracing.start_as_current_span("canary"):
                result = await canary.run(manifest.canary, version, last_approved_length(self._releases.state))
            is_kv_cache_tainted = result.is_kv_cache_tainted
            await self._publish_verdict(version, result)
        except EngineRejectedError as error:  # the engine rejects these weights, and will be stopped
            with suppress(BusError, NatsError):
                await self._publish_verdict(version, CanaryResult(str(error), {}))
            raise
        except (BusError, NatsError, OSError, ValueError):
            await self._roll_back(canary, is_kv_cache_tainted, is_serving)
            raise
        release = self._releases.state
        if not is_kv_cache_tainted and is_servable(release, manifest) and release.pinned in (None, version):
            await self._activate(update, pause_seconds)
            return
        await self._roll_back(canary, is_kv_cache_tainted, is_serving)
        if not is_servable(release, manifest):
            self.problem = shorten_line(f"version {version} was revoked: {result.reason or 'by somebody else'}", 200)

    async def _publish_verdict(self, version: int, result: CanaryResult) -> None:
        action: Literal["approved", "revoked"] = "revoked" if result.reason else "approved"
        metrics.canaries.labels(action).inc()
        log.info("version %d is %s: %s", version, action, result.reason or result.metrics)
        await self._releases.append_decision(
            action, version, actor=self._node_id, reason=result.reason, metrics=result.metrics, first_only=True
        )

    async def _roll_back(self, canary: Canary, is_kv_cache_tainted: bool, is_serving: bool) -> None:
        if is_serving:
            await canary.drain_traffic()
        if is_kv_cache_tainted:
            await canary.restart_engine()
        previous, self._active = self._active, None  # until it is loaded again
        if previous is None or is_revoked(self._releases.state, previous.version):
            await canary.await_next_version()
        elif previous.files:
            await self._load_and_activate(replace(previous, fetch_seconds=0.0, verify_seconds=0.0))
        else:
            await self._load_and_activate(await self._fetch(previous))

    async def _publish_activated(self, update: PendingUpdate, pause_seconds: float) -> None:
        activated = WeightsActivated(
            node=self._node_id,
            model=self._model,
            version=update.version,
            fetch_seconds=update.fetch_seconds,
            verify_seconds=update.verify_seconds,
            pause_seconds=pause_seconds,
            kv_cache=self._target.kv_cache,
            activated_at_ns=time.time_ns(),
        )
        msg_id = f"applied:{self._node_id}:{activated.version}:{activated.activated_at_ns}"
        try:
            await self._bus.publish(subjects.activated(self._node_id), activated, msg_id=msg_id)
        except BusError as error:
            log.warning("version %d is served but was not announced: %s", activated.version, error)
