"""The versions of a model as the bus has them: what was decided of them, and the manifests of older ones."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from nats.aio.msg import Msg

from bus.connection import Bus
from bus.errors import BusError, Fenced
from schemas import subjects
from schemas.codec import decode
from schemas.events import Event
from schemas.releases import awaits, decided, stands, verdict
from schemas.weights import LONGEST_NAME, LONGEST_REASON, Decision, WeightApplied, WeightRelease, WeightVersion

E = TypeVar("E", bound=Event)

ANSWER_SECONDS = 10.0
BATCH = 500
SEQUENCE = "Nats-Sequence"
STATUS = "Status"


@dataclass(frozen=True, slots=True)
class Choice:
    """What nodes are to serve now, and what one of them is to try; None: nothing."""

    serve: WeightVersion | None = None
    to_try: WeightVersion | None = None


class Releases:
    """What may be served of a model; decisions are made by compare-and-set, so none is lost to another."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._bus, self._model = bus, model
        self._subject = subjects.release(model)
        self._sequence = 0
        self.state = WeightRelease(model=model)
        """As of the last look."""
        self._newest, self._choice = 0, Choice()

    async def look(self) -> WeightRelease:
        """What holds now; an answer that is older than what was seen already counts for nothing."""
        found = await self._bus.last(subjects.WEIGHTS, self._subject, WeightRelease)
        if found is not None and found[1] > self._sequence:
            self.state, self._sequence = found
        return self.state

    async def decide(
        self,
        what: Literal["released", "revoked", "pinned", "unpinned"],
        version: int,
        *,
        who: str,
        why: str = "",
        figures: dict[str, float] | None = None,
        first_only: bool = False,
    ) -> WeightRelease:
        """Add a decision; returns what holds then. ``first_only``: a verdict that is there already stays the last."""
        words = {"who": who[:LONGEST_NAME], "why": why[:LONGEST_REASON]}
        said = Decision(what=what, version=version, **words, figures=figures or {}, decided_ns=time.time_ns())
        while True:
            before = await self.look()
            if first_only and verdict(before, version) is not None:
                return before
            after = decided(before, said)
            msg_id = f"release:{self._model}:{said.decided_ns}:{what}:{version}:{self._sequence}"
            try:
                sequence = await self._bus.publish(self._subject, after, msg_id=msg_id, expect_last=self._sequence)
            except Fenced:
                continue
            self.state, self._sequence = after, sequence
            return after

    async def choice(self) -> Choice:
        """What is to be served as of now: the pinned version, else the newest that stands.

        Only the newest of all is tried. Raises `BusError` when the pinned one is not on the bus.
        """
        release = await self.look()
        to_try = None
        newest = True
        async for manifest, sequence in self.versions():
            if newest and sequence < self._newest:
                return self._choice  # an answer that is older than what was seen already
            self._newest = max(self._newest, sequence)
            if release.pinned is None:
                found = stands(release, manifest)
                to_try = manifest if newest and awaits(release, manifest) else to_try
            elif manifest.version < release.pinned:
                break
            else:
                found = manifest.version == release.pinned
            if found:
                self._choice = Choice(manifest, to_try)
                return self._choice
            newest = False
        if release.pinned is not None and self._newest:
            raise BusError(f"version {release.pinned} is pinned and is not on the bus")
        self._choice = Choice(None, to_try)
        return self._choice

    async def versions(self) -> AsyncIterator[tuple[WeightVersion, int]]:
        """Manifests with their stream sequences, newest first."""
        subject = subjects.weights(self._model)
        found = await self._bus.last(subjects.WEIGHTS, subject, WeightVersion)
        while found is not None:
            yield found
            older = {"multi_last": [subject], "up_to_seq": found[1] - 1}
            found = next(iter(await _collected(self._bus, older, WeightVersion)), None) if found[1] > 1 else None

    async def published(self, version: int) -> list[tuple[WeightVersion, int]]:
        """Manifests of a version with their sequences, newest first: each life of a learner writes one.

        Raises `BusError` if the bus has none.
        """
        found = []
        async for one in self.versions():
            if one[0].version < version:
                break
            found += [one] if one[0].version == version else []
        if not found:
            raise BusError(
                f"model {self._model!r} has no version {version} on this bus: see `lightningbus weights list`"
            )
        return found

    async def applied(self, since: int, version: int) -> list[WeightApplied]:
        """Who went over to a version, in order; ``since`` is the sequence of its oldest manifest."""
        found: list[WeightApplied] = []
        while True:
            asked = {"batch": BATCH, "seq": since + 1, "next_by_subj": subjects.ALL_APPLIED}
            some = await _collected(self._bus, asked, WeightApplied)
            found += [one for one, _ in some if (one.model, one.version) == (self._model, version)]
            if len(some) < BATCH:
                return found
            since = some[-1][1]


async def _collected(bus: Bus, asked: dict[str, object], kind: type[E]) -> list[tuple[E, int]]:
    """The events that a request for several messages of WEIGHTS brings, with their sequences.

    The server answers with a message each, then one that says that it was the last (ADR-31, batched direct get).
    """
    found: list[tuple[E, int]] = []
    answers: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = bus.nc.new_inbox()
    listening = await bus.nc.subscribe(inbox, cb=answers.put)
    try:
        await bus.nc.publish(f"$JS.API.DIRECT.GET.{subjects.WEIGHTS}", json.dumps(asked).encode(), reply=inbox)
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                message = await answers.get()
                headers = message.headers or {}
                if STATUS in headers:
                    if headers[STATUS] in ("204", "404"):
                        return found
                    raise BusError(f"the versions cannot be looked up: {headers.get('Description', headers[STATUS])}")
                found.append((decode(kind, message.data), int(headers[SEQUENCE])))
    except TimeoutError:
        raise BusError(f"the versions cannot be looked up: no answer within {ANSWER_SECONDS:g} s") from None
    finally:
        if bus.nc.is_connected:
            await listening.unsubscribe()
