"""Follows the versions of a model on the bus: gets their files while the old one serves, then swaps.

What is served is the newest version that stands, or the pinned one (`schemas.weights.release_policy`), so a node may
go back too. Nodes that serve swap one after the other (`inference.weights.swap_lock`). A version that is to be tried is
tried by the first node that holds the lock; what the trial shows is a decision for all.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Literal

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from bus.client import Bus
from bus.errors import BusError
from bus.verified_download import counting
from bus.weights.registry import Releases
from common.observability import metrics, tracing
from common.observability.faults import count_fault
from inference.engine.vllm_server import EngineError, EngineRejectedError
from inference.weights.canary import Canary, CanaryResult
from inference.weights.swap_lock import SwapLock
from inference.weights.target import WeightTarget
from inference.weights.version_cache import WeightCache
from schemas import subjects
from schemas.codec import encode
from schemas.semconv import attributes
from schemas.weights.events import WeightManifest, WeightsActivated
from schemas.weights.release_policy import is_revoked, is_servable, last_approved_length

log = logging.getLogger(__name__)

RECHECK_SECONDS = 5.0
"""How often the last version is looked up even if no event came: events are hints, the stream is the truth."""

TRY_AGAIN_SECONDS = 60.0
"""How long a node that could not bring a trial to an end leaves that version to others."""

NOTIFICATION_LAG_SECONDS = (0.02, 0.1, 0.5, 1.5)
"""An event may arrive before the stream can be asked for it: looked up again after these pauses, in seconds."""


@dataclass(frozen=True)
class PendingUpdate:
    """A version that is to be served or tried next, its files verified."""

    manifest: WeightManifest
    is_canary: bool
    files: Sequence[Path] = ()
    """None of a version that came by a broadcast."""
    fetched: float = 0.0
    verified: float = 0.0


class WeightUpdater:
    """Keeps the engine at the version that is to be served."""

    def __init__(self, bus: Bus, node: str, model: str, work: Path, server: WeightTarget) -> None:
        self._bus, self._node, self._model, self._server = bus, node, model, server
        self._files = WeightCache(bus, model, work)
        self._releases = Releases(bus, model)
        self._turns = SwapLock(bus, node, model)
        self._wakeup = asyncio.Event()
        self._served: PendingUpdate | None = None
        self._canary_backoff: tuple[int, float] | None = None
        """A version that is not to be tried here, and until when."""
        self.problem = ""
        self.needs_full_weights = False
        """The newest version is a delta that cannot be put together here, not even from the whole one before it."""

    @property
    def last_error(self) -> str:
        """What keeps this node from the newest version, as a sentence; empty: nothing."""
        return self.problem or self._releases.problem

    @property
    def version(self) -> int | None:
        """What is served; None: nothing yet."""
        return self._served.manifest.version if self._served is not None else None

    async def run(self) -> None:
        """Follow for ever. An engine's failure is raised."""
        self._files.clear()
        followed = {subjects.weights(self._model): self._on_news, subjects.release(self._model): self._on_release}
        hints = [await self._bus.nc.subscribe(subject, cb=told) for subject, told in followed.items()]
        try:
            async with self._turns:
                await self._follow()
        finally:
            if self._bus.nc.is_connected:
                for hint in hints:
                    await hint.unsubscribe()

    async def _follow(self) -> None:
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

    async def _on_news(self, message: Msg) -> None:
        self._wakeup.set()

    async def _on_release(self, message: Msg) -> None:
        """Heeded at once, for this node may be waiting for a place; a decision that the stream refused is none."""
        self._wakeup.set()
        for pause in NOTIFICATION_LAG_SECONDS:
            with suppress(BusError, NatsError):
                release = await self._releases.look()
                self._server.on_release_state(release)
                if encode(release) == message.data:
                    return
            await asyncio.sleep(pause)

    async def _reconcile_once(self) -> bool:
        """Go on to what is next; a bad or missing blob leaves the old version serving. False: there is nothing."""
        try:
            await self._turns.release_stale()
            step = await self._desired()
            if (step is None or step.is_canary) and await self._stop_serving_revoked():
                return True
            if step is None:
                return False
            said: tracing.Said = {attributes.WEIGHT_VERSION: step.manifest.version, attributes.NODE: self._node}
            with tracing.span("version", said):
                return await self._update_to(step)
        except EngineError:
            raise
        except Exception as error:
            if not isinstance(error, (BusError, NatsError, OSError, ValueError)):
                count_fault("a weight version", error)
            metrics.fetch_failures.inc()
            self.problem = f"weights not fetched: {error}"
            log.warning("%s; version %s goes on serving", self.problem, self.version)
            return False

    async def _desired(self) -> PendingUpdate | None:
        """What is to be served and is not, else what is to be tried; its files are not here yet."""
        choice = await self._releases.choice()
        self._server.on_release_state(self._releases.state)
        if choice.serve is not None and choice.serve.version != self.version:
            return PendingUpdate(choice.serve, is_canary=False)
        version, until = self._canary_backoff or (None, 0.0)
        if choice.to_try is None or self._server.canary is None:
            return None
        if choice.to_try.version == version and time.monotonic() < until:
            return None
        return PendingUpdate(choice.to_try, is_canary=True)

    async def _stop_serving_revoked(self) -> bool:
        """Whether this node has ended serving a version that was revoked and has none before it."""
        version = self.version
        if version is None or self._server.canary is None or not is_revoked(self._releases.state, version):
            return False
        await self._server.canary.withdraw()
        self._served = None
        await self._server.canary.give_up()
        self.problem = f"version {version} was revoked, and no other stands"
        log.warning("%s", self.problem)
        return True

    async def _update_to(self, step: PendingUpdate) -> bool:
        if await self._try_broadcast(step):
            return True
        step = await self._fetched(step)
        missed = self._served is not None and self._interrupts_calls(step)  # who serves nobody is missed by nobody
        if not missed and not step.is_canary:
            return await self._swap_under_lock(step)
        async with self._turns.held():
            return await self._swap_under_lock(step)

    def _interrupts_calls(self, step: PendingUpdate) -> bool:
        """Whether calls stand still for it: all but adapters of a base that is there."""
        before = self._served.manifest.blobs[:-1] if self._served is not None else ()
        return self._server.needs_swap_lock or step.manifest.kind != "lora" or step.manifest.blobs[:-1] != before

    async def _fetched(self, step: PendingUpdate) -> PendingUpdate:
        started = time.monotonic()
        try:
            with tracing.span("fetch and verify"), counting() as verified:
                files = await self._files.ensure(step.manifest)
        except (BusError, NatsError, OSError, ValueError):
            self.needs_full_weights = self.needs_full_weights or step.manifest.kind == "delta"
            raise
        took = time.monotonic() - started
        return changed(step, files=files, fetched=max(0.0, took - verified.seconds), verified=verified.seconds)

    async def _try_broadcast(self, step: PendingUpdate) -> bool:
        """Whether a broadcast has brought what follows what is served: to all who have a seat, at once."""
        if step.is_canary or step.manifest.broadcast is None or step.manifest.parent != self.version:
            return False
        with tracing.span("broadcast"):
            paused = await self._server.join_broadcast(step.manifest)
        if paused is None:
            return False
        await self._on_active(step, paused)
        return True

    async def _swap_under_lock(self, step: PendingUpdate) -> bool:
        now = await self._desired()
        if now is None:
            return False
        if now.manifest.version != step.manifest.version and not self._still_progress(step, now):
            return True  # it was decided otherwise while this node waited
        if now.is_canary and now.manifest.version == step.manifest.version:
            await self._run_canary(step)
        else:
            await self._apply(step)
        return True

    def _still_progress(self, step: PendingUpdate, now: PendingUpdate) -> bool:
        """Versions may come quicker than turns: who began anew for each would never swap."""
        release, version = self._releases.state, step.manifest.version
        follows = (-1 if self.version is None else self.version) < version < now.manifest.version
        return follows and not step.is_canary and release.pinned is None and is_servable(release, step.manifest)

    async def _apply(self, step: PendingUpdate) -> None:
        await self._on_active(step, await self._swapped(step))

    async def _swapped(self, step: PendingUpdate) -> float:
        with tracing.span("swap"):
            return await self._server.load_files(step.files, step.manifest.version)

    async def _on_active(self, step: PendingUpdate, paused: float) -> None:
        version = step.manifest.version
        self._served, self.problem, self.needs_full_weights = step, "", False
        metrics.node_version.set(version)
        metrics.fetch_seconds.observe(step.fetched + step.verified)
        metrics.swap_pause_seconds.observe(paused)
        log.info("version %d: fetched in %.3f s, paused for %.3f s", version, step.fetched, paused)
        await self._announce(step, paused)
        if step.files:  # else those of the last version that came as one, which the next may be told from
            self._files.evict_except(step.files)
        await self._server.on_activated()

    async def _run_canary(self, step: PendingUpdate) -> None:
        """Hold a version that nobody serves, judge it, and tell; what does not stand then is gone back from."""
        canary, manifest = self._server.canary, step.manifest
        assert canary is not None and manifest.canary is not None
        version, spoiled = manifest.version, False
        self._canary_backoff = (version, time.monotonic() + TRY_AGAIN_SECONDS)
        await canary.withdraw()
        try:
            paused = await self._swapped(step)
            with tracing.span("trial"):
                judgement = await canary.judge(manifest.canary, version, last_approved_length(self._releases.state))
            spoiled = judgement.is_kv_cache_tainted
            await self._publish_verdict(version, judgement)
        except EngineRejectedError as error:  # its weights: this engine is given up
            await self._publish_verdict(version, CanaryResult(str(error), {}))
            raise
        except (BusError, NatsError, OSError, ValueError):
            await self._roll_back(canary, spoiled)
            raise
        release = self._releases.state
        if not judgement.is_kv_cache_tainted and is_servable(release, manifest) and release.pinned in (None, version):
            await self._on_active(step, paused)
            return
        await self._roll_back(canary, judgement.is_kv_cache_tainted)
        if not is_servable(release, manifest):
            self.problem = f"version {version} was revoked: {judgement.reason or 'by somebody else'}"[:200]

    async def _publish_verdict(self, version: int, judgement: CanaryResult) -> None:
        what: Literal["released", "revoked"] = "revoked" if judgement.reason else "released"
        metrics.trials.labels(what).inc()
        log.info("version %d is %s: %s", version, what, judgement.reason or judgement.figures)
        why, figures = judgement.reason, judgement.figures
        await self._releases.decide(what, version, who=self._node, why=why, figures=figures, first_only=True)

    async def _roll_back(self, canary: Canary, spoiled: bool = False) -> None:
        if spoiled:
            await canary.renew()
        before, self._served = self._served, None  # until it is there again
        if before is None or is_revoked(self._releases.state, before.manifest.version):
            await canary.give_up()
        elif before.files:
            await self._apply(changed(before, fetched=0.0, verified=0.0))
        else:
            await self._apply(await self._fetched(before))

    async def _announce(self, step: PendingUpdate, paused: float) -> None:
        applied = WeightsActivated(
            node=self._node,
            model=self._model,
            version=step.manifest.version,
            fetch_seconds=step.fetched,
            verify_seconds=step.verified,
            pause_seconds=paused,
            activated_at_ns=time.time_ns(),
        )
        msg_id = f"applied:{self._node}:{applied.version}:{applied.activated_at_ns}"
        try:
            await self._bus.publish(subjects.activated(self._node), applied, msg_id=msg_id)
        except BusError as error:
            log.warning("version %d is served but was not announced: %s", applied.version, error)
