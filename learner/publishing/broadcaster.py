"""Broadcasts weight versions: chooses the participants and controls the process that sends.

A broadcast never replaces the files. A version is on the bus before it is broadcast, and a node that does not take part
gets it from there. So nothing depends on a collective in which everybody must take part.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec

from lightningbus.bus.fleet.node_state import is_ready
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.listeners import warn_if_reachable
from lightningbus.common.observability import metrics
from lightningbus.common.processes.subprocesses import kill_group, spawn
from lightningbus.learner.publishing.broadcast_worker import SendReply, SendRequest
from lightningbus.learner.publishing.delta_chain import link_or_copy
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.weights import BroadcastSettings
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import (
    Backend,
    BroadcastCapability,
    BroadcastPlan,
    RankAssignment,
    WeightManifest,
)

log = logging.getLogger(__name__)

FILE = ".broadcast.safetensors"
OPEN_BROADCAST = (
    "whoever does can read the weights and disturb engines; use a network that only the learner and its nodes are on"
)
MAX_SEND_SECONDS = 110.0
"""Longest broadcast after the rendezvous: longer than its own timeouts, shorter than nodes wait for engines."""
START_TIMEOUT_SECONDS = 120.0
COOLDOWN_VERSIONS = 10
"""Versions for which an engine that missed a rendezvous is not invited."""


def assign_ranks(
    beats: Sequence[Heartbeat], model: str, backend: Backend, base_version: int, cooldown: Collection[str] = ()
) -> tuple[RankAssignment, ...]:
    """Assign ranks to the engines that serve ``base_version``, in the order of ``beats``.

    An engine that is behind is busy and would miss the rendezvous; it catches up by files.
    """
    participants: list[RankAssignment] = []
    rank = 1
    for beat in beats:
        try:
            capability = msgspec.convert(beat.status.get("broadcast"), BroadcastCapability)
        except msgspec.ValidationError:
            continue
        ready = beat.model == model and beat.version == base_version and is_ready(beat.state)
        if ready and backend in capability.backends and capability.engine not in cooldown:
            participants.append(
                RankAssignment(node=beat.id, engine=capability.engine, rank=rank, ranks=capability.ranks)
            )
            rank += capability.ranks
    return tuple(participants)


class SenderFailedError(Exception):
    """The sender process ended, or a broadcast failed."""

    def __init__(self, reason: str, missing_ranks: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.missing_ranks = missing_ranks


class SenderProcess:
    """A child process that runs `lightningbus.learner.publishing.broadcast_worker`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.port = 0

    @classmethod
    async def start(cls, settings: BroadcastSettings) -> "SenderProcess":
        """Start a sender and wait until it listens; raises `SenderFailedError`."""
        command = [
            "-P",
            "-m",
            "lightningbus.learner.publishing.broadcast_worker",
            settings.backend,
            settings.host,
            str(settings.port),
        ]
        pipe = asyncio.subprocess.PIPE
        process = cls(await spawn(sys.executable, *command, stdin=pipe, stdout=pipe))
        try:
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                process.port = (await process._receive_reply()).port
        except TimeoutError as error:
            raise SenderFailedError(f"the sender did not start within {START_TIMEOUT_SECONDS:g} s") from error
        finally:
            if not process.port:
                await process.end()
        return process

    async def send(self, request: SendRequest) -> None:
        """Make a broadcast; raises `SenderFailedError`."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        await self._receive_reply()

    async def end(self) -> None:
        """Kill it; this breaks every group that it is in."""
        await kill_group(self._process)

    async def _receive_reply(self) -> SendReply:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            reply = msgspec.json.decode(line, type=SendReply) if line else SendReply(error="the sender ended")
        except (ValueError, msgspec.DecodeError) as error:  # a line too long, or no reply
            raise SenderFailedError(f"the sender's reply cannot be decoded: {error}") from error
        if reply.error:
            raise SenderFailedError(reply.error, reply.missing_ranks)
        return reply


class Broadcaster:
    """Plans broadcasts and makes them in the background."""

    def __init__(self, settings: LearnerSettings, members: Callable[[], Sequence[Heartbeat]]) -> None:
        """Prepare broadcasts; ``members`` returns the living inference nodes."""
        self._settings, self._model, self._members = settings.weights.broadcast, settings.model, members
        self._file = settings.checkpoint_dir / FILE
        self._process: SenderProcess | None = None
        self._starting: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._group, self._participants = "", tuple[RankAssignment, ...]()
        self._cooldown: dict[str, int] = {}
        """Engines that missed a rendezvous, and the version before which they are not invited."""
        self._suspended_until = -1
        """No version before this one is broadcast."""
        self.num_sent = 0
        """Number of successful broadcasts."""

    async def __aenter__(self) -> "Broadcaster":
        if self._settings.backend != "off":
            address = f"{self._settings.host}:{self._settings.port or 'a free port'}"
            warn_if_reachable("the broadcast of weights", self._settings.host, address, OPEN_BROADCAST)
            self._starting = asyncio.create_task(self._start_sender())
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._sending is not None:
                await asyncio.wait({self._sending})  # breaking it off would restart every engine in it
        finally:
            await cancel_and_wait(*(task for task in (self._sending, self._starting) if task is not None))
            if self._process is not None:
                await self._process.end()
            self._file.unlink(missing_ok=True)

    async def wait_idle(self) -> None:
        """Wait until the last broadcast has ended and the sender is ready or has failed to start; bounded."""
        if self._sending is not None:
            await asyncio.wait({self._sending})
        if self._starting is not None:
            await asyncio.wait({self._starting})

    async def plan(self, path: Path, version: int, epoch: int, base_version: int | None) -> BroadcastPlan | None:
        """Plan the broadcast of a version; None if no engine can take part, or the sender is not ready.

        ``base_version`` is the version before. The file at ``path`` may be replaced afterwards.
        """
        backend = self._settings.backend
        if backend == "off" or base_version is None or version < self._suspended_until:
            return None
        if self._sending is not None:
            await asyncio.wait({self._sending})
        if self._process is None:
            self._restart_sender()
            return None
        self._cooldown = {engine: until for engine, until in self._cooldown.items() if version < until}
        participants = assign_ranks(self._members(), self._model, backend, base_version, self._cooldown)
        if not participants:
            return None
        try:  # before it is published: a planned broadcast that fails breaks the group
            link_or_copy(path, self._file)
        except OSError as error:
            log.warning("version %d goes out by its files only: %s", version, error)
            return None
        if participants != self._participants:
            self._group, self._participants = uuid4().hex, participants
        return BroadcastPlan(
            backend=backend,
            address=f"{self._settings.host}:{self._process.port}",
            group=self._group,
            rendezvous_key=f"{self._group}/{version}-{epoch}",
            participants=participants,
            size=path.stat().st_size,
            rendezvous_timeout_seconds=self._settings.rendezvous_timeout_seconds,
        )

    def start(self, manifest: WeightManifest) -> None:
        """Start the broadcast that a manifest plans, if any."""
        if manifest.broadcast is not None:
            self._sending = asyncio.create_task(self._send(manifest.version, manifest.broadcast))

    def _restart_sender(self) -> None:
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start_sender())

    async def _start_sender(self) -> None:
        try:
            self._process = await SenderProcess.start(self._settings)
        except (SenderFailedError, OSError) as error:
            log.warning("weight versions go out by their files only: %s", error)

    async def _send(self, version: int, plan: BroadcastPlan) -> None:
        assert self._process is not None
        request = SendRequest(
            plan.group, plan.rendezvous_key, plan.world_size, plan.rendezvous_timeout_seconds, str(self._file)
        )
        try:
            async with asyncio.timeout(plan.rendezvous_timeout_seconds + MAX_SEND_SECONDS):
                await self._process.send(request)
        except (SenderFailedError, TimeoutError, OSError) as error:
            metrics.weight_broadcasts.labels("aborted").inc()
            reason = str(error) or "it did not end in time"
            log.warning("version %d goes out by its files only: the broadcast failed: %s", version, reason)
            missing_ranks = error.missing_ranks if isinstance(error, SenderFailedError) else ()
            self._start_cooldown(plan.participants, missing_ranks, version)
            if not missing_ranks:  # it failed in the middle, which restarts every engine: do not risk it again soon
                self._suspended_until = version + COOLDOWN_VERSIONS
            await self._process.end()
            self._process, self._group, self._participants = None, "", ()
            self._restart_sender()
        else:
            metrics.weight_broadcasts.labels("sent").inc()
            self.num_sent += 1
            log.info("version %d was broadcast to %d engines", version, len(plan.participants))

    def _start_cooldown(
        self, participants: Sequence[RankAssignment], missing_ranks: Sequence[int], version: int
    ) -> None:
        for participant in participants:
            first, last = participant.rank, participant.rank + participant.ranks - 1
            if any(first <= rank <= last for rank in missing_ranks):
                log.warning(
                    "node %s missed the rendezvous and is not invited for the next %d versions",
                    participant.node,
                    COOLDOWN_VERSIONS,
                )
                self._cooldown[participant.engine] = version + COOLDOWN_VERSIONS
