"""The weight version that nodes keep while it is evaluated."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import first_completed
from lightningbus.run.errors import UserError
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import ReleaseDecision, ReleaseState
from lightningbus.schemas.weights.release_policy import (
    EVALUATE_ACTOR,
    TRAIN_ACTOR,
    find_pin,
    is_servable,
    is_temporary,
)

RECHECK_SECONDS = 5.0
"""Pause between two look-ups of a pin or of versions without a notification: a canary may have approved one."""


async def find_version(registry: WeightRegistry, version: int | None) -> int:
    """Return the version, if nodes can load it, or the newest; raises `UserError`."""
    release = await registry.refresh()
    available = []
    async for manifest, _ in registry.list_versions():
        if is_servable(release, manifest) and not await registry.find_expired_blob(manifest):
            available.append(manifest.version)
    if not available:
        raise UserError("no weight version is left to evaluate: `lightningbus weights list` says why")
    if version is None:
        return max(available)
    if version not in available:
        names = ", ".join(map(str, sorted(set(available))))
        raise UserError(f"nodes cannot load version {version}: it is not on the run's bus any more; these are: {names}")
    return version


async def wait_for_evaluations(bus: Bus, registry: WeightRegistry, model: str) -> ReleaseDecision | None:
    """Wait until no evaluation has a version pinned; returns the pin of somebody else, if there is one."""
    async with notified(bus, subjects.release(model)) as changed:
        while (pin := find_pin(await registry.refresh())) is not None and is_temporary(pin):
            await first_completed(changed.wait(), asyncio.sleep(RECHECK_SECONDS))
            changed.clear()
        return pin


@asynccontextmanager
async def notified(bus: Bus, subject: str) -> AsyncIterator[asyncio.Event]:
    """Yield an event that each message on a subject sets, while the block runs."""
    changed = asyncio.Event()

    async def on_message(message: Msg) -> None:
        changed.set()

    subscription = await bus.nc.subscribe(subject, cb=on_message)
    try:
        yield changed
    finally:
        with suppress(NatsError):
            await subscription.unsubscribe()


@asynccontextmanager
async def all_pinned(registries: Mapping[str, WeightRegistry], versions: Mapping[str, int]) -> AsyncIterator[None]:
    """Pin one version of each model while the block runs, see `pinned`."""
    async with AsyncExitStack() as pins:
        for model, version in versions.items():
            await pins.enter_async_context(pinned(registries[model], version))
        yield


@asynccontextmanager
async def pinned(registry: WeightRegistry, version: int) -> AsyncIterator[None]:
    """Let nodes serve the version while the block runs; afterwards what was pinned before."""
    before = find_pin(registry.state)
    if registry.state.pinned != version:
        await registry.append_decision("pinned", version, actor=EVALUATE_ACTOR, reason="it is evaluated")
    try:
        yield
    finally:
        with suppress(BusError, NatsError):
            if before is None:
                await registry.append_decision("unpinned", version, actor=EVALUATE_ACTOR)
            elif before.version != version:  # by its own actor, who is to unpin it
                await registry.append_decision(
                    "pinned", before.version, actor=before.actor, reason="it was before an evaluation"
                )


class VersionPins:
    """The versions that a training job has pinned, one of each model that is trained."""

    def __init__(self, bus: Bus, run: str, models: Sequence[str]) -> None:
        """``models``: the one that agents call by name first."""
        self.main = models[0]
        self.registries = {model: WeightRegistry(bus, model) for model in models}
        self._actor = f"{TRAIN_ACTOR}{run}"

    async def is_taken(self) -> bool:
        """Return whether somebody else has pinned a version of one of the models."""
        releases = [await registry.refresh() for registry in self.registries.values()]
        return any(release.pinned is not None and not self._is_own(release) for release in releases)

    async def find_newest(self, *, but: str = "") -> dict[str, int] | None:
        """Find the versions that nodes serve, or the newest ones that they may serve; None: a model has none.

        ``but``: a model to leave out.
        """
        versions = {}
        for model, registry in self.registries.items():
            if model != but:
                target = (await registry.resolve_target()).serve
                if target is None:
                    return None
                versions[model] = target.version
        return versions

    async def are_loadable(self, versions: Mapping[str, int]) -> bool:
        """Return whether nodes can still load every one of these versions."""
        for model, version in versions.items():
            try:
                await find_version(self.registries[model], version)
            except UserError:
                return False
        return True

    async def pin(self, versions: Mapping[str, int], reason: str) -> None:
        """Let nodes serve these versions until `unpin`."""
        for model, version in versions.items():
            if (await self.registries[model].refresh()).pinned != version:
                await self.registries[model].append_decision("pinned", version, actor=self._actor, reason=reason)

    async def unpin(self) -> None:
        """Let nodes follow the newest versions again, unless somebody else has pinned one."""
        for registry in self.registries.values():
            release = await registry.refresh()
            if release.pinned is not None and self._is_own(release):
                await registry.append_decision("unpinned", release.pinned, actor=self._actor)

    def find_last_pinned(self, model: str) -> int | None:
        """Return the version of a model that this job, or an earlier start of it, pinned last; None: there is none."""
        decisions = self.registries[model].state.decisions
        pins = (each.version for each in reversed(decisions) if (each.action, each.actor) == ("pinned", self._actor))
        return next(pins, None)

    async def keep(self, model: str, version: int, reason: str) -> None:
        """Let the files of a version stay, in place of the one that was kept before."""
        registry = self.registries[model]
        if (await registry.refresh()).kept != version:
            await registry.append_decision("kept", version, actor=self._actor, reason=reason)

    def _is_own(self, release: ReleaseState) -> bool:
        pin = find_pin(release)
        return pin is not None and pin.actor == self._actor
