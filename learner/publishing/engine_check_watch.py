"""Watch whether inference engines agree with the learner on its first version."""

from contextlib import suppress

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.schemas.weights.events import WeightManifest
from lightningbus.schemas.weights.release_policy import latest_verdict


async def watch_engine_check(bus: Bus, model: str, publisher: WeightPublisher, nodes: Fleet) -> None:
    """Run for ever; raise `LearnerError` when a node has revoked a version because its engine disagrees.

    A node says by its heartbeat that a trial has ended.
    """
    releases, decided_version = WeightRegistry(bus, model), -1
    while True:
        if (last := publisher.last) is not None and last.version > decided_version and _is_engine_check(last):
            verdict = None
            with suppress(BusError, NatsError):  # the bus is away: asked again with the next heartbeat
                verdict = latest_verdict(await releases.refresh(), last.version)
            if verdict is not None and verdict.action == "revoked":
                raise LearnerError(
                    f"{verdict.actor} cannot serve version {last.version} as the learner computes it: {verdict.reason}"
                )
            decided_version = decided_version if verdict is None else last.version
        await nodes.wait_for_change()


def _is_engine_check(version: WeightManifest) -> bool:
    return version.canary is not None and version.canary.is_engine_check
