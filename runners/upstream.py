"""Asking an inference node, and asking again: an agent's call is held while no node can answer it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from bus import Fleet
from runners import routing
from runners.call import Call
from runners.record import Attempt
from schemas.events import Heartbeat

log = logging.getLogger(__name__)

RETRY_STATUS = frozenset({409, 429, 502, 503, 504})
RECHECK_SECONDS = 0.25
"""How long a refused call waits for a change in the fleet before it asks again."""
MAX_EVENT_BYTES = 16 * 1024 * 1024


class Refused(Exception):
    """The engine refused the request itself; the agent gets its status and body as they are."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.body = status, body


class UnknownModel(Exception):
    """No node serves a model of this name."""


class NoAnswer(Exception):
    """No node answered before the rollout's deadline, or one failed amid an answer that had begun."""


class Upstream:
    """The inference nodes, as one: chooses a node, holds a call, asks again elsewhere."""

    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._session = session

    async def ask(
        self, call: Call, body: dict[str, Any], path: str, attempt: Attempt, deadline: float
    ) -> AsyncIterator[tuple[Heartbeat, AsyncIterator[dict[str, Any]]]]:
        """Attempts, one after the other: a node and its stream of chunks; the caller stops at one it can use.

        ``deadline`` is in the event loop's time. Raises `Refused`, `UnknownModel` or `NoAnswer`.
        """
        pinned = attempt.task.weight_version
        headers = {"X-Lightningbus-Rollout": attempt.rollout}
        if pinned is not None:
            headers["X-Lightningbus-Version"] = str(pinned)
        payload = json.dumps(body).encode()
        problem = "no inference node is ready"
        while True:
            node = await self._node(call.model, attempt, deadline, problem)
            try:
                async with self._session.post(node.address + path, data=payload, headers=headers) as response:
                    if response.status == 200:
                        yield node, _events(response)
                        problem = f"{node.id} broke off its answer"
                    elif response.status in RETRY_STATUS:
                        problem = f"{node.id} answered {response.status}"
                    else:
                        raise Refused(response.status, await response.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = f"{node.id} cannot be reached: {error or type(error).__name__}"
            await self._change(attempt, deadline, problem)

    async def _node(self, model: str, attempt: Attempt, deadline: float, problem: str) -> Heartbeat:
        while True:
            nodes = self._fleet.members()
            if nodes and model not in routing.served(nodes):
                raise UnknownModel(f"model {model!r} is not served; served: {', '.join(sorted(routing.served(nodes)))}")
            node = routing.choose(nodes, model, attempt.rollout, attempt.task.weight_version)
            if node is not None:
                return node
            await self._change(attempt, deadline, problem)

    async def _change(self, attempt: Attempt, deadline: float, problem: str) -> None:
        attempt.held += 1
        try:
            async with asyncio.timeout_at(deadline):
                try:
                    async with asyncio.timeout(RECHECK_SECONDS):
                        await self._fleet.changed()
                except TimeoutError:
                    if asyncio.get_running_loop().time() >= deadline:
                        raise
        except TimeoutError:
            raise NoAnswer(f"{problem} until the rollout's deadline") from None
        finally:
            attempt.held -= 1


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """JSON of each server-sent event until ``[DONE]``; raises `aiohttp.ClientPayloadError` if that never comes."""
    rest = b""
    async for data in response.content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                return
            if event.startswith(b"data: "):
                yield json.loads(event[6:])
        if len(rest) > MAX_EVENT_BYTES:
            raise aiohttp.ClientPayloadError("an event is too large")
    raise aiohttp.ClientPayloadError("the stream ended early")
