"""Turns: of the nodes of a model that serve, one swaps at a time, so that the others go on. There is no coordinator.

Whose turn it is stands in the last message on a subject, and is taken by compare-and-set on it. A turn is given back
after the swap; that of a node that has died, or has begun anew, is void.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg

from bus.client import Bus
from bus.errors import BusError, Fenced
from bus.fleet.heartbeats import Fleet
from bus.fleet.node_state import DEAD_SECONDS
from bus.weights.signed_log import Verified
from common.observability import metrics
from schemas import subjects
from schemas.fleet import Heartbeat
from schemas.weights.events import SwapLockState

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Who waits looks again as often, because nobody says of himself that he is dead."""
MAX_HOLD_SECONDS = 900.0
"""No swap takes this long: vLLM is given up before."""
GIVE_BACK_SECONDS = 5.0
RESTARTED_STATES = ("starting", "draining")
"""States of a node that swaps nothing."""


def free(turn: SwapLockState | None, me: str, holder: Heartbeat | None, known: float) -> bool:
    """Whether the next turn may be taken. Pure.

    ``turn`` is the last one, ``holder`` the last heartbeat of the node that took it, None if it is dead or was never
    heard of, and ``known`` for how many seconds this node has known of the turn, by its own clock.
    """
    if turn is None or turn.released or turn.node == me:
        return True
    if holder is None:
        return known >= DEAD_SECONDS
    return known >= MAX_HOLD_SECONDS or (holder.state in RESTARTED_STATES and holder.sent_at_ns > turn.acquired_at_ns)


class SwapLock:
    """The turns of a model's nodes, as one of them takes part; an async context manager."""

    def __init__(self, bus: Bus, node: str, model: str) -> None:
        self._bus, self._node, self._model = bus, node, model
        self._subject = subjects.swap_lock(model)
        self._turns = Verified(bus, self._subject, model, SwapLockState)
        self._fleet: Fleet = bus.fleet("inference")
        self._news = asyncio.Event()
        self._known = (0, 0.0)
        """Sequence of the last turn seen, and since when."""
        self._must_release = True

    async def __aenter__(self) -> "SwapLock":
        await self._fleet.__aenter__()
        self._hint = await self._bus.nc.subscribe(self._subject, cb=self._on_news)
        return self

    async def __aexit__(self, *exit: object) -> None:
        if self._bus.nc.is_connected:
            await self._hint.unsubscribe()
        await self._fleet.__aexit__(*exit)

    async def release_stale(self) -> None:
        """Give back what an earlier life of this node, or a bus that did not answer, has left taken."""
        if self._must_release:
            turn, sequence = await self._last()
            self._must_release = turn is not None and turn.node == self._node and not turn.released
            if self._must_release:
                await self._give_back(sequence)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait until it is this node's turn, and keep it while the block runs. Raises as `Bus.publish`."""
        self._must_release = True  # before it is asked for: the stream may have it though it never answered
        with metrics.turn_wait_seconds.time():
            sequence = await self._acquire()
        try:
            yield
        finally:
            await self._give_back(sequence)

    async def _give_back(self, sequence: int) -> None:
        try:
            await self._say(over=True, last=sequence)
        except Fenced:
            log.warning("another node took the turn meanwhile: this one was silent for too long")
        except BusError as error:
            log.warning("the turn was not given back: %s", error)
            return
        self._must_release = False

    async def _acquire(self) -> int:
        while True:
            self._news.clear()
            turn, sequence = await self._last()
            now = time.monotonic()
            if sequence != self._known[0]:
                self._known = (sequence, now)
            if free(turn, self._node, self._holder(turn), now - self._known[1]):
                try:
                    return await self._say(over=False, last=sequence)
                except Fenced:
                    pass  # another one was quicker
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _holder(self, turn: SwapLockState | None) -> Heartbeat | None:
        return next((beat for beat in self._fleet.members() if turn is not None and beat.id == turn.node), None)

    async def _last(self) -> tuple[SwapLockState | None, int]:
        last = await self._turns.last()
        entry = await anext(self._turns.newest_first(last), None)
        return entry.event if entry is not None else None, last.sequence if last is not None else 0

    async def _say(self, *, over: bool, last: int) -> int:
        turn = SwapLockState(model=self._model, node=self._node, released=over, acquired_at_ns=time.time_ns())
        msg_id = f"turn:{self._model}:{self._node}:{turn.acquired_at_ns}:{last}"
        return await self._bus.publish(self._subject, turn, msg_id=msg_id, expect_last=last, timeout=GIVE_BACK_SECONDS)

    async def _on_news(self, message: Msg) -> None:
        self._news.set()
