"""Heartbeats: every process says once a second what it is doing, over core NATS, forgotten when missed."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from bus.fleet.node_state import DEAD_SECONDS, SUSPECT_SECONDS, seen
from common.aio import cancel
from schemas import subjects
from schemas.codec import DecodeError, decode, encode
from schemas.fleet import Heartbeat

INTERVAL_SECONDS = 1.0


def own_id(given: str | None) -> str:
    """What a process is called: as its settings say, else by host and process id."""
    return given or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


class Pulse:
    """Sends a role's heartbeat each second; `now` sends one at once, for changes others wait for."""

    def __init__(self, nc: Client, role: str, id: str, describe: Callable[[], dict[str, Any]]) -> None:
        self._nc, self._role, self._id, self._describe = nc, role, id, describe

    def said(self) -> Heartbeat:
        """What the heartbeat says now."""
        said = {"pid": os.getpid(), "sent_at_ns": time.time_ns(), **self._describe()}
        return Heartbeat(role=self._role, id=self._id, **said)  # type: ignore[arg-type]

    async def now(self) -> None:
        """Send the heartbeat; while disconnected it is skipped, a stale one is worth nothing."""
        beat = self.said()
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
    """Keep a pulse going while the block runs; the last one says how it ended."""
    task = asyncio.create_task(pulse.beat())
    try:
        yield pulse
    finally:
        await cancel(task)
        await pulse.now()


class Fleet:
    """Who is alive in a role (``*``: in any), by their last heartbeat."""

    def __init__(self, nc: Client, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._nc, self._role, self._clock = nc, role, clock
        self._heard: dict[tuple[str, str], tuple[Heartbeat, float]] = {}
        self._forgets = clock()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "Fleet":
        self._subscription = await self._nc.subscribe(subjects.heartbeats(self._role), cb=self._on_beat)
        await self._nc.flush()
        return self

    async def __aexit__(self, *exit: object) -> None:
        if not self._nc.is_closed:
            await self._subscription.unsubscribe()

    def members(self) -> list[Heartbeat]:
        """Last heartbeat of everybody who is not dead, by role and id; ``suspect`` who has been silent for a while."""
        now = self._clock()
        states = [(beat, seen(beat.state, now - heard)) for _, (beat, heard) in sorted(self._heard.items())]
        return [
            beat if beat.state == state else replace(beat, state=state) for beat, state in states if state != "dead"
        ]

    def suspect(self, role: str, id: str) -> None:
        """Somebody did not answer: no new work for it before it is heard of again."""
        if (role, id) in self._heard:
            beat, heard = self._heard[(role, id)]
            self._heard[(role, id)] = (beat, min(heard, self._clock() - SUSPECT_SECONDS))

    async def changed(self) -> None:
        """Wait for the next heartbeat of anybody."""
        self._changed.clear()
        await self._changed.wait()

    async def _on_beat(self, message: Msg) -> None:
        try:
            beat = decode(Heartbeat, message.data)
        except DecodeError:
            return  # a newer or foreign writer; its absence from the fleet says so
        if message.subject != subjects.heartbeat(beat.role, beat.id):
            return  # a right to speak is a right to a subject: nobody speaks for another role there
        now = self._clock()
        self._heard[(beat.role, beat.id)] = (beat, now)
        if now >= self._forgets:  # not at each: of ten thousand members each says something every second
            self._forgets = now + INTERVAL_SECONDS
            self._heard = {key: last for key, last in self._heard.items() if now - last[1] < DEAD_SECONDS}
        self._changed.set()
