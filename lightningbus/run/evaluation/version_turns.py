"""Work on weight versions while they are published, one turn after the other."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.common.aio import first_completed
from lightningbus.run.evaluation.pinned_version import RECHECK_SECONDS, VersionPins, notified
from lightningbus.schemas import subjects

log = logging.getLogger(__name__)


class Turn(Protocol):
    """Something that needs nodes to keep their versions: an evaluation, or a round of prompt optimisation."""

    async def pin_due(self, is_over: bool) -> Mapping[str, int] | None:
        """Pin the versions that are due and return them; unpin and return None if there are none."""

    async def run(self, versions: Mapping[str, int]) -> None:
        """Do it under these versions."""


async def take_turns(bus: Bus, pins: VersionPins, turns: Sequence[Turn], is_over: asyncio.Event) -> None:
    """Take the first turn that is due, again and again, until training ``is_over`` and none is due.

    Nodes load one version at a time. So turns are taken one after the other, and nodes keep the version of each.
    """
    async with notified(bus, subjects.weights(pins.main)) as changed:
        try:
            while True:
                changed.clear()
                was_over = is_over.is_set()
                try:
                    turn, versions = await _pin_next(turns, was_over)
                except (BusError, NatsError) as error:
                    log.warning("no version can be chosen now: %s", str(error) or type(error).__name__)
                    await asyncio.sleep(RECHECK_SECONDS)
                    continue
                if turn is not None:
                    await turn.run(versions)
                elif was_over:
                    return
                else:
                    await first_completed(changed.wait(), is_over.wait(), asyncio.sleep(RECHECK_SECONDS))
        finally:
            with suppress(BusError, NatsError):
                await pins.unpin()


async def _pin_next(turns: Sequence[Turn], is_over: bool) -> tuple[Turn | None, Mapping[str, int]]:
    for turn in turns:
        versions = await turn.pin_due(is_over)
        if versions is not None:
            return turn, versions
    return None, {}
