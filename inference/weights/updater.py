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
from inference.engine.vllm_server import EngineFailed, EngineRefused
from inference.weights.canary import Canary, Judgement
from inference.weights.swap_lock import Turns
from inference.weights.target import Server
from inference.weights.version_cache import VersionFiles
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

HINT_PAUSES = (0.02, 0.1, 0.5, 1.5)
"""An event may arrive before the stream can be asked for it: looked up again after these pauses, in seconds."""


@dataclass(frozen=True)
class Step:
    """A version that is to be served or tried next, its files verified."""

    manifest: WeightManifest
    on_trial: bool
    files: Sequence[Path] = ()
    """None of a version that came by a broadcast."""
    fetched: float = 0.0
    verified: float = 0.0


class Subscriber:
    """Keeps the engine at the version that is to be served."""

    def __init__(self, bus: Bus, node: str, model: str, work: Path, server: Server) -> None:
        self._bus, self._node, self._model, self._server = bus, node, model, server
        self._files = VersionFiles(bus, model, work)
        self._releases = Releases(bus, model)
        self._turns = Turns(bus, node, model)
        self._news = asyncio.Event()
        self._served: Step | None = None
        self._left_alone: tuple[int, float] | None = None
        """A version that is not to be tried here, and until when."""
        self.problem = ""
        self.wants_whole = False
        """The newest version is a delta that cannot be put together here, not even from the whole one before it."""

    @property
    def trouble(self) -> str:
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
        pauses = iter(HINT_PAUSES)
        while True:
            if self._news.is_set():
                self._news.clear()
                pauses = iter(HINT_PAUSES)
            if await self._catch_up():
                continue
            try:
                async with asyncio.timeout(next(pauses, RECHECK_SECONDS)):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _on_news(self, message: Msg) -> None:
        self._news.set()

    async def _on_release(self, message: Msg) -> None:
        """Heeded at once, for this node may be waiting for a place; a decision that the stream refused is none."""
        self._news.set()
        for pause in HINT_PAUSES:
            with suppress(BusError, NatsError):
                release = await self._releases.look()
                self._server.heed(release)
                if encode(release) == message.data:
                    return
            await asyncio.sleep(pause)

    async def _catch_up(self) -> bool:
        """Go on to what is next; a bad or missing blob leaves the old version serving. False: there is nothing."""
        try:
            await self._turns.settle()
            step = await self._next()
            if (step is None or step.on_trial) and await self._stopped():
                return True
            if step is None:
                return False
            said: tracing.Said = {attributes.WEIGHT_VERSION: step.manifest.version, attributes.NODE: self._node}
            with tracing.span("version", said):
                return await self._go_on_to(step)
        except EngineFailed:
            raise
        except Exception as error:
            if not isinstance(error, (BusError, NatsError, OSError, ValueError)):
                count_fault("a weight version", error)
            metrics.fetch_failures.inc()
            self.problem = f"weights not fetched: {error}"
            log.warning("%s; version %s goes on serving", self.problem, self.version)
            return False

    async def _next(self) -> Step | None:
        """What is to be served and is not, else what is to be tried; its files are not here yet."""
        choice = await self._releases.choice()
        self._server.heed(self._releases.state)
        if choice.serve is not None and choice.serve.version != self.version:
            return Step(choice.serve, on_trial=False)
        version, until = self._left_alone or (None, 0.0)
        if choice.to_try is None or self._server.canary is None:
            return None
        if choice.to_try.version == version and time.monotonic() < until:
            return None
        return Step(choice.to_try, on_trial=True)

    async def _stopped(self) -> bool:
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

    async def _go_on_to(self, step: Step) -> bool:
        if await self._took_part(step):
            return True
        step = await self._fetched(step)
        missed = self._served is not None and self._pauses(step)  # who serves nobody is missed by nobody
        if not missed and not step.on_trial:
            return await self._take_turn(step)
        async with self._turns.taken():
            return await self._take_turn(step)

    def _pauses(self, step: Step) -> bool:
        """Whether calls stand still for it: all but adapters of a base that is there."""
        before = self._served.manifest.blobs[:-1] if self._served is not None else ()
        return self._server.one_at_a_time or step.manifest.kind != "lora" or step.manifest.blobs[:-1] != before

    async def _fetched(self, step: Step) -> Step:
        started = time.monotonic()
        try:
            with tracing.span("fetch and verify"), counting() as verified:
                files = await self._files.get(step.manifest)
        except (BusError, NatsError, OSError, ValueError):
            self.wants_whole = self.wants_whole or step.manifest.kind == "delta"
            raise
        took = time.monotonic() - started
        return changed(step, files=files, fetched=max(0.0, took - verified.seconds), verified=verified.seconds)

    async def _took_part(self, step: Step) -> bool:
        """Whether a broadcast has brought what follows what is served: to all who have a seat, at once."""
        if step.on_trial or step.manifest.broadcast is None or step.manifest.parent != self.version:
            return False
        with tracing.span("broadcast"):
            paused = await self._server.take_part(step.manifest)
        if paused is None:
            return False
        await self._serves(step, paused)
        return True

    async def _take_turn(self, step: Step) -> bool:
        now = await self._next()
        if now is None:
            return False
        if now.manifest.version != step.manifest.version and not self._still_worth(step, now):
            return True  # it was decided otherwise while this node waited
        if now.on_trial and now.manifest.version == step.manifest.version:
            await self._try(step)
        else:
            await self._apply(step)
        return True

    def _still_worth(self, step: Step, now: Step) -> bool:
        """Versions may come quicker than turns: who began anew for each would never swap."""
        release, version = self._releases.state, step.manifest.version
        follows = (-1 if self.version is None else self.version) < version < now.manifest.version
        return follows and not step.on_trial and release.pinned is None and is_servable(release, step.manifest)

    async def _apply(self, step: Step) -> None:
        await self._serves(step, await self._swapped(step))

    async def _swapped(self, step: Step) -> float:
        with tracing.span("swap"):
            return await self._server.swap(step.files, step.manifest.version)

    async def _serves(self, step: Step, paused: float) -> None:
        version = step.manifest.version
        self._served, self.problem, self.wants_whole = step, "", False
        metrics.node_version.set(version)
        metrics.fetch_seconds.observe(step.fetched + step.verified)
        metrics.swap_pause_seconds.observe(paused)
        log.info("version %d: fetched in %.3f s, paused for %.3f s", version, step.fetched, paused)
        await self._announce(step, paused)
        if step.files:  # else those of the last version that came as one, which the next may be told from
            self._files.drop_all_but(step.files)
        await self._server.applied()

    async def _try(self, step: Step) -> None:
        """Hold a version that nobody serves, judge it, and tell; what does not stand then is gone back from."""
        canary, manifest = self._server.canary, step.manifest
        assert canary is not None and manifest.canary is not None
        version, spoiled = manifest.version, False
        self._left_alone = (version, time.monotonic() + TRY_AGAIN_SECONDS)
        await canary.withdraw()
        try:
            paused = await self._swapped(step)
            with tracing.span("trial"):
                judgement = await canary.judge(manifest.canary, version, last_approved_length(self._releases.state))
            spoiled = judgement.spoiled
            await self._say_verdict(version, judgement)
        except EngineRefused as error:  # its weights: this engine is given up
            await self._say_verdict(version, Judgement(str(error), {}))
            raise
        except (BusError, NatsError, OSError, ValueError):
            await self._go_back(canary, spoiled)
            raise
        release = self._releases.state
        if not judgement.spoiled and is_servable(release, manifest) and release.pinned in (None, version):
            await self._serves(step, paused)
            return
        await self._go_back(canary, judgement.spoiled)
        if not is_servable(release, manifest):
            self.problem = f"version {version} was revoked: {judgement.reason or 'by somebody else'}"[:200]

    async def _say_verdict(self, version: int, judgement: Judgement) -> None:
        what: Literal["released", "revoked"] = "revoked" if judgement.reason else "released"
        metrics.trials.labels(what).inc()
        log.info("version %d is %s: %s", version, what, judgement.reason or judgement.figures)
        why, figures = judgement.reason, judgement.figures
        await self._releases.decide(what, version, who=self._node, why=why, figures=figures, first_only=True)

    async def _go_back(self, canary: Canary, spoiled: bool = False) -> None:
        if spoiled:
            await canary.renew()
        before, self._served = self._served, None  # until it is there again
        if before is None or is_revoked(self._releases.state, before.manifest.version):
            await canary.give_up()
        elif before.files:
            await self._apply(changed(before, fetched=0.0, verified=0.0))
        else:
            await self._apply(await self._fetched(before))

    async def _announce(self, step: Step, paused: float) -> None:
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
