"""The weight version that nodes keep while it is evaluated."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from bus.client import Bus
from bus.errors import BusError
from bus.weights.registry import WeightRegistry
from common.aio import first_completed
from lightningbus.run.role_process import UserError
from schemas import subjects
from schemas.weights.events import ReleaseDecision, ReleaseState
from schemas.weights.release_policy import is_servable

EVALUATE_ACTOR = "evaluate"
"""Who pins a version for an evaluation, in the record of decisions."""
TRAIN_ACTOR = "train:"
"""Begins the name of a training job that pins a version for its held-out problems."""
RECHECK_SECONDS = 5.0
"""How often the pin is looked up without a notification."""


async def find_version(registry: WeightRegistry, version: int | None) -> int:
    """The version, if nodes can load it, or the newest; raises `UserError`."""
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


def find_pin(release: ReleaseState) -> ReleaseDecision | None:
    """The decision that pinned the version that is pinned now; None: none is. Pure."""
    if release.pinned is None:
        return None
    pins = [decision for decision in release.decisions if decision.action == "pinned"]
    return pins[-1] if pins else None


def is_temporary(pin: ReleaseDecision) -> bool:
    """Whether whoever pinned the version unpins it by itself, at the end of an evaluation. Pure."""
    return pin.actor == EVALUATE_ACTOR or pin.actor.startswith(TRAIN_ACTOR)


async def wait_for_evaluations(bus: Bus, registry: WeightRegistry, model: str) -> ReleaseDecision | None:
    """Wait until no evaluation has a version pinned; returns the pin of somebody else, if there is one."""
    changed = asyncio.Event()

    async def on_decision(message: Msg) -> None:
        changed.set()

    subscription = await bus.nc.subscribe(subjects.release(model), cb=on_decision)
    try:
        while (pin := find_pin(await registry.refresh())) is not None and is_temporary(pin):
            await first_completed(changed.wait(), asyncio.sleep(RECHECK_SECONDS))
            changed.clear()
        return pin
    finally:
        with suppress(NatsError):
            await subscription.unsubscribe()


@asynccontextmanager
async def all_pinned(registries: Mapping[str, WeightRegistry], versions: Mapping[str, int]) -> AsyncIterator[None]:
    """`pinned`, for one version of each model."""
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
