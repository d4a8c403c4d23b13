"""Heartbeats: every process publishes its state once a second over core NATS. They are not stored."""

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

from lightningbus.bus.fleet.node_state import DEAD_SECONDS, DONE, SUSPECT_SECONDS, observed_state
from lightningbus.common.aio import cancel_and_wait
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import DecodeError, decode, encode
from lightningbus.schemas.fleet import Heartbeat

INTERVAL_SECONDS = 1.0


def default_instance_id(configured: str | None) -> str:
    """Choose the id of a process: from its settings, else from host and process id."""
    return configured or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


class HeartbeatPublisher:
    """Sends a role's heartbeat each second. `send_now` sends one at once after an important change."""

    def __init__(self, nc: Client, role: str, id: str, describe: Callable[[], dict[str, Any]]) -> None:
        self._nc, self._role, self._id, self._describe = nc, role, id, describe

    def current(self) -> Heartbeat:
        """Build the current heartbeat."""
        fields = {"pid": os.getpid(), "sent_at_ns": time.time_ns(), **self._describe()}
        return Heartbeat(role=self._role, id=self._id, **fields)  # type: ignore[arg-type]

    async def send_now(self) -> None:
        """Send the heartbeat. It is skipped while disconnected, because an old one is useless."""
        beat = self.current()
        if self._nc.is_connected:
            try:
                await self._nc.publish(subjects.heartbeat(self._role, self._id), encode(beat))
            except NatsError:
                return

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self.send_now()
            await asyncio.sleep(INTERVAL_SECONDS)


@asynccontextmanager
async def publish_heartbeats(publisher: HeartbeatPublisher) -> AsyncIterator[HeartbeatPublisher]:
    """Send heartbeats while the block runs, and a last one with the final state."""
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        await cancel_and_wait(task)
        await publisher.send_now()


class Fleet:
    """Live processes of a role (``*``: of any role), by their last heartbeat."""

    def __init__(self, nc: Client, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._nc, self._role, self._clock = nc, role, clock
        self._last_seen: dict[tuple[str, str], tuple[Heartbeat, float]] = {}
        self._done: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
        """Processes that are done, by role, run and model."""
        self._next_prune_at = clock()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "Fleet":
        self._subscription = await self._nc.subscribe(subjects.heartbeats(self._role), cb=self._on_heartbeat)
        await self._nc.flush()
        return self

    async def __aexit__(self, *exit: object) -> None:
        if not self._nc.is_closed:
            await self._subscription.unsubscribe()

    def members(self) -> list[Heartbeat]:
        """List the last heartbeat of every process that is not dead, by role and id. A silent one is ``suspect``.

        One that is ``done`` stays until another process of its role, run and model comes.
        """
        now = self._clock()
        states = [
            (beat, observed_state(beat.state, now - seen_at)) for _, (beat, seen_at) in sorted(self._last_seen.items())
        ]
        return [
            beat if beat.state == state else replace(beat, state=state) for beat, state in states if state != "dead"
        ]

    def suspect(self, role: str, id: str) -> None:
        """Mark a process that did not answer: it gets no new work before its next heartbeat.

        A node of several models has a heartbeat for each, with one engine: all of them become suspect.
        """
        if (role, id) not in self._last_seen:
            return
        engine_id = self._last_seen[(role, id)][0].status.get("engine_id")
        suspect_since = self._clock() - SUSPECT_SECONDS
        for key, (beat, seen_at) in self._last_seen.items():
            if key == (role, id) or (engine_id and beat.status.get("engine_id") == engine_id):
                self._last_seen[key] = (beat, min(seen_at, suspect_since))

    async def wait_for_change(self) -> None:
        """Wait for the next heartbeat of any process."""
        self._changed.clear()
        await self._changed.wait()

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            beat = decode(Heartbeat, message.data)
        except DecodeError:
            return  # a newer or foreign writer; it is missing from the fleet
        if message.subject != subjects.heartbeat(beat.role, beat.id):
            return  # a right to speak is a right to a subject: nobody speaks for another role there
        now = self._clock()
        key, work = (beat.role, beat.id), (beat.role, beat.run_id, beat.model)
        if key not in self._last_seen:
            for done in self._done.pop(work, ()):  # a successor continues their work
                self._last_seen.pop(done, None)
        if beat.state == DONE:
            self._done.setdefault(work, set()).add(key)
        elif work in self._done:
            self._done[work].discard(key)
        self._last_seen[key] = (beat, now)
        if now >= self._next_prune_at:  # not at each of ten thousand heartbeats per second
            self._next_prune_at = now + INTERVAL_SECONDS
            self._last_seen = {
                key: (last, seen_at)
                for key, (last, seen_at) in self._last_seen.items()
                if last.state == DONE or now - seen_at < DEAD_SECONDS
            }
        self._changed.set()
