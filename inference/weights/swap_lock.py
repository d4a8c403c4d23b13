"""A lock without a coordinator: among a model's serving nodes one swaps at a time, and the others continue to serve.

The last message on a subject names the holder; the lock is acquired by compare-and-set on that subject, and released
after the swap. It is free if its holder has died or restarted.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError, FencedError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.node_state import DEAD_SECONDS
from lightningbus.bus.weights.signed_log import SignedLog
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import SwapLockState

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""A waiting node reads the lock this often: a node that died publishes nothing."""
MAX_HOLD_SECONDS = 900.0
"""Longer than any swap: its control calls time out before."""
PUBLISH_TIMEOUT_SECONDS = 5.0
RESTARTED_STATES = ("starting", "draining")
"""States of a node that does not swap."""


def is_free(lock: SwapLockState | None, node_id: str, holder: Heartbeat | None, seen_seconds: float) -> bool:
    """Return whether the lock may be acquired. Pure.

    ``lock`` is its last state and ``holder`` the last heartbeat of the node in it; None: that node is dead or unknown.
    ``seen_seconds``: how long this node has seen that state, by its own clock.
    """
    if lock is None or lock.released or lock.node == node_id:
        return True
    if holder is None:
        return seen_seconds >= DEAD_SECONDS
    restarted = holder.state in RESTARTED_STATES and holder.sent_at_ns > lock.acquired_at_ns
    return restarted or seen_seconds >= MAX_HOLD_SECONDS


class SwapLock:
    """The swap lock of a model, used by one of its nodes; an async context manager."""

    def __init__(self, bus: Bus, node_id: str, model: str) -> None:
        self._bus, self._node_id, self._model = bus, node_id, model
        self._subject = subjects.swap_lock(model)
        self._log = SignedLog(bus, self._subject, model, SwapLockState)
        self._fleet: Fleet = bus.fleet("inference")
        self._changed = asyncio.Event()
        self._last_seen = (0, 0.0)
        """Sequence of the last state, and when it was first seen."""
        self._must_release = True

    async def __aenter__(self) -> "SwapLock":
        await self._fleet.__aenter__()
        self._subscription = await self._bus.nc.subscribe(self._subject, cb=self._on_change)
        return self

    async def __aexit__(self, *exit: object) -> None:
        if self._bus.nc.is_connected:
            await self._subscription.unsubscribe()
        await self._fleet.__aexit__(*exit)

    async def release_stale(self) -> None:
        """Release what this node still holds: from before a restart, or because a release had no reply."""
        if self._must_release:
            lock, sequence = await self._last()
            self._must_release = lock is not None and lock.node == self._node_id and not lock.released
            if self._must_release:
                await self._release(sequence)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Acquire the lock, and hold it while the block runs. Raises as `Bus.publish`."""
        self._must_release = True  # set first: the stream may have the message although its reply was lost
        with metrics.swap_lock_wait.time():
            sequence = await self._acquire()
        try:
            yield
        finally:
            await self._release(sequence)

    async def _release(self, sequence: int) -> None:
        try:
            await self._publish(released=True, last=sequence)
        except FencedError:
            await self._release_again(sequence)
            return
        except BusError as error:
            log.warning("the swap lock was not released: %s", error)
            return
        self._must_release = False

    async def _release_again(self, expected: int) -> None:
        """Release the lock under another sequence, or find that another node has it.

        A message of this node that the bus stored without an answer to it changes the sequence, and so does a bus that
        is an older copy of itself.
        """
        try:
            lock, sequence = await self._last()
            if lock is not None and lock.node == self._node_id and not lock.released:
                await self._publish(released=True, last=sequence)
            elif lock is not None and lock.node != self._node_id and sequence > expected:
                log.warning("another node acquired the swap lock: this one sent no heartbeat for too long")
        except (BusError, NatsError) as error:  # `release_stale` tries again
            log.warning("the swap lock was not released: %s", str(error) or type(error).__name__)
            return
        self._must_release = False

    async def _acquire(self) -> int:
        while True:
            self._changed.clear()
            lock, sequence = await self._last()
            now = time.monotonic()
            if sequence != self._last_seen[0]:
                self._last_seen = (sequence, now)
            if is_free(lock, self._node_id, self._find_holder(lock), now - self._last_seen[1]):
                try:
                    return await self._publish(released=False, last=sequence)
                except FencedError:
                    pass  # another node was faster
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _find_holder(self, lock: SwapLockState | None) -> Heartbeat | None:
        return next((beat for beat in self._fleet.members() if lock is not None and beat.id == lock.node), None)

    async def _last(self) -> tuple[SwapLockState | None, int]:
        last = await self._log.get_last()
        entry = await anext(self._log.newest_first(last), None)
        return entry.event if entry is not None else None, last.sequence if last is not None else 0

    async def _publish(self, *, released: bool, last: int) -> int:
        lock = SwapLockState(model=self._model, node=self._node_id, released=released, acquired_at_ns=time.time_ns())
        msg_id = f"swap_lock:{self._model}:{self._node_id}:{lock.acquired_at_ns}:{last}"
        return await self._bus.publish(
            self._subject, lock, msg_id=msg_id, expect_last=last, timeout=PUBLISH_TIMEOUT_SECONDS
        )

    async def _on_change(self, message: Msg) -> None:
        self._changed.set()
