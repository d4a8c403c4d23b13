"""Weight versions by broadcast: who is offered a seat, and the process that sends.

The way is beside the blobs, never instead: a version is on the bus before it is broadcast, and whoever has no seat, or
is kept from taking it, gets it from there. So nothing hangs on a collective that all must take part in.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec

from bus.fleet.node_state import is_ready
from common.aio import cancel_and_wait
from common.observability import metrics
from common.subprocesses import kill_group, spawn
from learner.publishing.broadcast_worker import SendReply, SendRequest
from learner.publishing.delta_chain import link_or_copy
from learner.settings.learner import LearnerSettings
from learner.settings.weights import BroadcastSettings
from schemas.fleet import Heartbeat
from schemas.weights.events import Backend, BroadcastCapability, BroadcastPlan, RankAssignment, WeightManifest

log = logging.getLogger(__name__)

FILE = ".broadcast.safetensors"
MAX_SEND_SECONDS = 110.0
"""Most that a broadcast may take once all have met: longer than its own bounds, less than nodes wait for engines."""
START_TIMEOUT_SECONDS = 120.0
COOLDOWN_VERSIONS = 10
"""Versions that who did not come is not waited for."""


def assign_ranks(
    beats: Sequence[Heartbeat], model: str, backend: Backend, base_version: int, resting: Collection[str] = ()
) -> tuple[RankAssignment, ...]:
    """Seats for the engines that serve version ``held`` and so are free for the next one, in the order of ``beats``.

    Who is behind is busy, and would be waited for in vain; it gets there by files.
    """
    seats: list[RankAssignment] = []
    rank = 1
    for beat in beats:
        try:
            reach = msgspec.convert(beat.status.get("reach"), BroadcastCapability)
        except msgspec.ValidationError:
            continue
        ready = beat.model == model and beat.version == base_version and is_ready(beat.state)
        if ready and backend in reach.backends and reach.engine not in resting:
            seats.append(RankAssignment(node=beat.id, engine=reach.engine, rank=rank, ranks=reach.ranks))
            rank += reach.ranks
    return tuple(seats)


class SenderFailed(Exception):
    """The sender is gone, or did not do what it was told."""

    def __init__(self, why: str, absent: Sequence[int] = ()) -> None:
        super().__init__(why)
        self.missing_ranks = absent


class SenderProcess:
    """A `learner.publishing.broadcast_worker` as a child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.port = 0

    @classmethod
    async def start(cls, settings: BroadcastSettings) -> "SenderProcess":
        """A sender that listens; raises `SenderFailed`."""
        command = [
            "-P",
            "-m",
            "learner.publishing.broadcast_worker",
            settings.backend,
            settings.host,
            str(settings.port),
        ]
        pipe = asyncio.subprocess.PIPE
        process = cls(await spawn(sys.executable, *command, stdin=pipe, stdout=pipe))
        try:
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                process.port = (await process._answer()).port
        except TimeoutError as error:
            raise SenderFailed(f"the sender did not start within {START_TIMEOUT_SECONDS:g} s") from error
        finally:
            if not process.port:
                await process.end()
        return process

    async def send(self, order: SendRequest) -> None:
        """Raises `SenderFailed`."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        await self._answer()

    async def end(self) -> None:
        """Whatever it is doing: with it every group that it is in breaks."""
        await kill_group(self._process)

    async def _answer(self) -> SendReply:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            answer = msgspec.json.decode(line, type=SendReply) if line else SendReply(error="the sender ended")
        except (ValueError, msgspec.DecodeError) as error:  # a line without end, or of something else
            raise SenderFailed(f"the sender says what is not understood: {error}") from error
        if answer.error:
            raise SenderFailed(answer.error, answer.missing_ranks)
        return answer


class Broadcaster:
    """Offers broadcasts and makes them, in the background; see the module."""

    def __init__(self, settings: LearnerSettings, members: Callable[[], Sequence[Heartbeat]]) -> None:
        """``members``: the inference nodes that are alive."""
        self._settings, self._model, self._members = settings.weights.broadcast, settings.model, members
        self._file = settings.checkpoint_dir / FILE
        self._process: SenderProcess | None = None
        self._starting: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._group, self._seats = "", tuple[RankAssignment, ...]()
        self._cooldown: dict[str, int] = {}
        """Engines that did not come, with the version until which they are not waited for."""
        self._suspended_until = -1
        """No version before this one is broadcast."""
        self.num_sent = 0
        """Broadcasts that went through."""

    async def __aenter__(self) -> "Broadcaster":
        if self._settings.backend != "off":
            self._starting = asyncio.create_task(self._start())
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._sending is not None:
                await asyncio.wait({self._sending})  # to leave amid it would cost every engine in it a start
        finally:
            await cancel_and_wait(*(task for task in (self._sending, self._starting) if task is not None))
            if self._process is not None:
                await self._process.end()
            self._file.unlink(missing_ok=True)

    async def wait_idle(self) -> None:
        """Wait until the last broadcast has come to an end and the next one can be made, or never will; bounded."""
        if self._sending is not None:
            await asyncio.wait({self._sending})
        if self._starting is not None:
            await asyncio.wait({self._starting})

    async def plan(self, path: Path, version: int, epoch: int, base_version: int | None) -> BroadcastPlan | None:
        """Who can take a version straight from this machine's memory; None: nobody, or it cannot be sent now.

        ``held`` is the version before. The file at ``path`` may be replaced from now on.
        """
        backend = self._settings.backend
        if backend == "off" or base_version is None or version < self._suspended_until:
            return None
        if self._sending is not None:
            await asyncio.wait({self._sending})
        if self._process is None:
            self._start_again()
            return None
        self._cooldown = {engine: until for engine, until in self._cooldown.items() if version < until}
        seats = assign_ranks(self._members(), self._model, backend, base_version, self._cooldown)
        if not seats:
            return None
        try:  # before it is offered: who is offered what does not come leaves the group
            link_or_copy(path, self._file)
        except OSError as error:
            log.warning("version %d is to be had by its files: %s", version, error)
            return None
        if seats != self._seats:
            self._group, self._seats = uuid4().hex, seats
        return BroadcastPlan(
            backend=backend,
            address=f"{self._settings.host}:{self._process.port}",
            group=self._group,
            rendezvous_key=f"{self._group}/{version}-{epoch}",
            participants=seats,
            size=path.stat().st_size,
            rendezvous_timeout_seconds=self._settings.rendezvous_timeout_seconds,
        )

    def start(self, manifest: WeightManifest) -> None:
        """What a manifest offers is done from now on."""
        if manifest.broadcast is not None:
            self._sending = asyncio.create_task(self._send(manifest.version, manifest.broadcast))

    def _start_again(self) -> None:
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        try:
            self._process = await SenderProcess.start(self._settings)
        except (SenderFailed, OSError) as error:
            log.warning("weights go by their files only: %s", error)

    async def _send(self, version: int, offer: BroadcastPlan) -> None:
        assert self._process is not None
        order = SendRequest(
            offer.group, offer.rendezvous_key, offer.world_size, offer.rendezvous_timeout_seconds, str(self._file)
        )
        try:
            async with asyncio.timeout(offer.rendezvous_timeout_seconds + MAX_SEND_SECONDS):
                await self._process.send(order)
        except (SenderFailed, TimeoutError, OSError) as error:
            metrics.weight_broadcasts.labels("aborted").inc()
            why = str(error) or "it did not end in time"
            log.warning("version %d is to be had by its files: the broadcast was given up: %s", version, why)
            absent = getattr(error, "absent", ())
            self._rest(offer.participants, absent, version)
            if not absent:  # it broke off amid the weights, which costs every engine a start: it may do so again
                self._suspended_until = version + COOLDOWN_VERSIONS
            await self._process.end()
            self._process, self._group, self._seats = None, "", ()
            self._start_again()
        else:
            metrics.weight_broadcasts.labels("sent").inc()
            self.num_sent += 1
            log.info("version %d was broadcast to %d engines", version, len(offer.participants))

    def _rest(self, seats: Sequence[RankAssignment], absent: Sequence[int], version: int) -> None:
        for seat in seats:
            if any(seat.rank <= rank < seat.rank + seat.ranks for rank in absent):
                log.warning(
                    "node %s did not come, and is not waited for in the next %d versions", seat.node, COOLDOWN_VERSIONS
                )
                self._cooldown[seat.engine] = version + COOLDOWN_VERSIONS
