"""Heartbeats: every process says once a second what it is doing, over core NATS, forgotten when missed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from schemas import subjects
from schemas.codec import DecodeError, decode, encode
from schemas.events import Heartbeat

INTERVAL_SECONDS = 1.0
FORGET_SECONDS = 3.5
"""A member not heard of for this long is gone."""


class Pulse:
    """Sends a role's heartbeat each second; `now` sends one at once, for changes others wait for."""

    def __init__(self, nc: Client, role: str, id: str, describe: Callable[[], dict[str, Any]]) -> None:
        self._nc, self._role, self._id, self._describe = nc, role, id, describe

    async def now(self) -> None:
        """Send the heartbeat; while disconnected it is skipped, a stale one is worth nothing."""
        beat = Heartbeat(role=self._role, id=self._id, sent_ns=time.time_ns(), **self._describe())  # type: ignore[arg-type]
        if self._nc.is_connected:
            try:
                await self._nc.publish(subjects.heartbeat(self._role, self._id), encode(beat))
            except NatsError:
                return

    async def beat(self) -> None:
        """Send for ever."""
        while True:
            await self.now()
            await asyncio.sleep(INTERVAL_SECONDS)


@asynccontextmanager
async def beating(pulse: Pulse) -> AsyncIterator[Pulse]:
    """Keep a pulse going while the block runs."""
    task = asyncio.create_task(pulse.beat())
    try:
        yield pulse
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Fleet:
    """Who is alive in a role (``*``: in any), by their last heartbeat."""

    def __init__(self, nc: Client, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._nc, self._role, self._clock = nc, role, clock
        self._heard: dict[tuple[str, str], tuple[Heartbeat, float]] = {}
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "Fleet":
        self._subscription = await self._nc.subscribe(subjects.heartbeats(self._role), cb=self._on_beat)
        await self._nc.flush()
        return self

    async def __aexit__(self, *exit: object) -> None:
        if not self._nc.is_closed:
            await self._subscription.unsubscribe()

    def members(self) -> list[Heartbeat]:
        """Last heartbeat of everybody heard of in the last 3.5 s, by role and id."""
        now = self._clock()
        return [beat for _, (beat, heard) in sorted(self._heard.items()) if now - heard < FORGET_SECONDS]

    async def changed(self) -> None:
        """Wait for the next heartbeat of anybody."""
        self._changed.clear()
        await self._changed.wait()

    async def _on_beat(self, message: Msg) -> None:
        try:
            beat = decode(Heartbeat, message.data)
        except DecodeError:
            return  # a newer or foreign writer; its absence from the fleet says so
        now = self._clock()
        self._heard[(beat.role, beat.id)] = (beat, now)
        self._heard = {key: seen for key, seen in self._heard.items() if now - seen[1] < 10 * FORGET_SECONDS}
        self._changed.set()
