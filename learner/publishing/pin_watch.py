"""Watch whether somebody has pinned an older weight version than training waits for."""

from collections.abc import Callable
from contextlib import suppress

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.schemas.weights.events import ReleaseState
from lightningbus.schemas.weights.release_policy import find_pin, is_temporary


class PinWatch:
    """Reads the decisions about versions while training waits for nodes to serve a newer one."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._releases = WeightRegistry(bus, model)
        self._is_read = False

    async def run(self, nodes: Fleet, find_missing: Callable[[], int | None]) -> None:
        """Read them at each heartbeat of a node while a version is missing, for ever.

        ``find_missing`` returns the version that a node must serve before training continues; None: it waits for none.
        """
        while True:
            if find_missing() is None:
                self._is_read = False
            else:
                with suppress(BusError, NatsError):  # the bus is away: read with the next heartbeat
                    await self._releases.refresh()
                    self._is_read = True
            await nodes.wait_for_change()

    def describe(self, missing: int) -> str:
        """Describe the pin that keeps nodes from serving version ``missing``; empty: there is none, or not known."""
        return describe_pin(self._releases.state, missing) if self._is_read else ""


def describe_pin(release: ReleaseState, missing: int) -> str:
    """Describe the pin of a person that keeps nodes below a version, and its remedy; empty: there is none. Pure.

    An evaluation removes its own pin.
    """
    if release.pinned is None or release.pinned >= missing:
        return ""
    pin = find_pin(release)
    if pin is not None and is_temporary(pin):
        return ""
    actor = f" by {pin.actor}" if pin is not None else ""
    reason = f" ({pin.reason})" if pin is not None and pin.reason else ""
    return (
        f"version {release.pinned} is pinned{actor}{reason}: "
        f"`lightningbus weights unpin --model {release.model}` lets nodes serve newer ones"
    )
