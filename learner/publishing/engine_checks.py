"""Checks that inference engines compute the first versions as the learner does."""

from contextlib import suppress

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.learner.errors import LearnerError
from lightningbus.schemas.weights.release_policy import latest_verdict

NUM_CHECKS = 4
"""Versions that an engine has to have tried: an engine and a learner that drift apart are named within three steps."""


class EngineChecks:
    """The versions of a new learner that carry an engine check, and what nodes decided about them."""

    def __init__(self) -> None:
        self._pending: set[int] = set()
        self._num_approved = 0

    def is_due(self, version: int) -> bool:
        """Return whether a version has to carry a check: version 0, and later ones until `NUM_CHECKS` are approved.

        A node tries the newest version alone, so that a check of a version before it may stay undecided. A learner
        that goes on from a checkpoint is not checked.
        """
        return version == 0 or (len(self._pending) + self._num_approved > 0 and self._num_approved < NUM_CHECKS)

    def add(self, version: int) -> None:
        """Record that a version with a check is published."""
        self._pending.add(version)

    async def watch(self, bus: Bus, model: str, nodes: Fleet) -> None:
        """Run for ever; raise `LearnerError` when a node has revoked a version because its engine disagrees.

        A node says by its heartbeat that a trial has ended.
        """
        releases = WeightRegistry(bus, model)
        while True:
            with suppress(BusError, NatsError):  # the bus is away: asked again with the next heartbeat
                await self._look(releases)
            await nodes.wait_for_change()

    async def _look(self, releases: WeightRegistry) -> None:
        if not self._pending:
            return
        state = await releases.refresh()
        for version in sorted(self._pending):
            verdict = latest_verdict(state, version)
            if verdict is None:
                continue
            if verdict.action == "revoked":
                raise LearnerError(
                    f"{verdict.actor} cannot serve version {version} as the learner computes it: {verdict.reason}"
                )
            self._pending.discard(version)
            self._num_approved += 1
