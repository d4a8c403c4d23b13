"""The versions of a model as the bus has them: what was decided of them, and the manifests of older ones.

Where keys are given, only what was signed by who may decide it counts: see `bus.weights.signed_log`.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from nats.js.errors import NotFoundError

from bus.batch_get import batch_get, sequence_of
from bus.client import Bus
from bus.errors import BusError, FencedError
from bus.weights.signed_log import Entry, SignedLog
from schemas import subjects
from schemas.base import Event
from schemas.codec import DecodeError, decode
from schemas.signers import ADMIN
from schemas.weights.events import (
    MAX_ACTOR_CHARS,
    MAX_REASON_CHARS,
    ReleaseDecision,
    ReleaseState,
    SwapLockState,
    WeightManifest,
    WeightsActivated,
)
from schemas.weights.release_policy import apply_decision, is_pending_canary, is_servable, is_successor, latest_verdict

E = TypeVar("E", bound=Event)

RESPONSE_TIMEOUT_SECONDS = 10.0
REPLICA_LAG_SECONDS = 30.0
"""A server is behind the others for moments; what has been older for longer than this is a stream made anew."""
RETRY_SECONDS = 0.2
BATCH = 500


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """What nodes are to serve now, and what one of them is to try; None: nothing."""

    serve: WeightManifest | None = None
    canary: WeightManifest | None = None


class MonotonicSequence:
    """How far a subject was seen to have come, by servers of which one may be behind."""

    def __init__(self) -> None:
        self.sequence = 0
        """Of the stream; 0: nothing."""
        self._behind_since: float | None = None

    def accept(self, sequence: int) -> bool:
        """Whether this is the last message there is, as far as one can know; if so it is what was seen."""
        now = time.monotonic()
        if sequence < self.sequence:
            self._behind_since = now if self._behind_since is None else self._behind_since
            if now - self._behind_since < REPLICA_LAG_SECONDS:
                return False
        self.sequence, self._behind_since = sequence, None
        return True


class WeightRegistry:
    """What may be served of a model; decisions are made by compare-and-set, so none is lost to another."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._bus, self._model = bus, model
        self._subject = subjects.release(model)
        self._last_decision, self._last_manifest = MonotonicSequence(), MonotonicSequence()
        self._decisions = SignedLog(bus, self._subject, model, ReleaseState)
        self._manifests = SignedLog(bus, subjects.weights(model), model, WeightManifest)
        self._read_up_to = 0
        """Sequence of the last decision that is part of the state, or was passed over."""
        self.state = ReleaseState(model=model)
        """As of the last look."""
        self._target = ServingTarget()

    @property
    def problem(self) -> str:
        """Why the newest version, or the newest decision, is passed over; empty: it is not."""
        return self._manifests.skip_reason(self._last_manifest.sequence) or self._decisions.skip_reason(
            self._last_decision.sequence
        )

    async def refresh(self) -> ReleaseState:
        """What holds now; an answer that is older than what was seen already counts for nothing.

        It is told from all decisions, so that one that cannot be read, or that nobody was to make, changes nothing.
        """
        last = await self._decisions.get_last()
        sequence = last.sequence if last is not None else 0
        if self._last_decision.accept(sequence):
            await self._read_decisions(sequence)
        return self.state

    async def _read_decisions(self, sequence: int) -> None:
        if sequence < self._read_up_to:  # the stream was made anew
            self.state, self._read_up_to = ReleaseState(model=self._model), 0
        deadline = time.monotonic() + RESPONSE_TIMEOUT_SECONDS
        while self._read_up_to < sequence:
            entries, end = await self._decisions.read_after(self._read_up_to)
            for entry in entries:
                if entry.sequence <= self._read_up_to:
                    continue  # another call has read it meanwhile
                if entry.signer and not self._is_snapshot(entry) and not is_successor(self.state, entry.event):
                    self._decisions.skip(entry.sequence, "it is not the decisions before it and one more")
                else:
                    self.state = entry.event
            self._read_up_to = max(self._read_up_to, end)
            if self._read_up_to < sequence:  # a server that is behind
                if time.monotonic() > deadline:
                    raise BusError(f"the decisions up to {sequence} cannot be looked up")
                await asyncio.sleep(RETRY_SECONDS)

    def _is_snapshot(self, entry: Entry[ReleaseState]) -> bool:
        """Whether it may be begun with, because the stream has dropped the decisions before it; only an admin pins."""
        return not self.state.decisions and (entry.signer == ADMIN or entry.event.pinned is None)

    async def append_decision(
        self,
        action: Literal["approved", "revoked", "pinned", "unpinned"],
        version: int,
        *,
        actor: str,
        reason: str = "",
        metrics: dict[str, float] | None = None,
        first_only: bool = False,
    ) -> ReleaseState:
        """Add a decision; returns the release state then. ``first_only``: an earlier decision on this version stays.

        Raises as `Bus.publish`, `FencedError` if others have been quicker for a minute.
        """
        deadline = time.monotonic() + 2 * REPLICA_LAG_SECONDS
        words = {"actor": actor[:MAX_ACTOR_CHARS], "reason": reason[:MAX_REASON_CHARS]}
        decision = ReleaseDecision(
            action=action, version=version, **words, metrics=metrics or {}, decided_at_ns=time.time_ns()
        )
        while True:
            before = await self.refresh()
            if first_only and latest_verdict(before, version) is not None:
                return before
            after = apply_decision(before, decision)
            last = self._last_decision.sequence
            msg_id = f"release:{self._model}:{version}:{last}:{secrets.token_hex(16)}"
            try:
                sequence = await self._bus.publish(self._subject, after, msg_id=msg_id, expect_last=last, unique=True)
            except FencedError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if self._last_decision.accept(sequence):  # else it was looked up meanwhile, with what came after it
                self.state, self._read_up_to = after, sequence
            return after

    async def resolve_target(self) -> ServingTarget:
        """What is to be served as of now: the pinned version, else the newest that may be served.

        Only the newest of all can be the canary. Raises `BusError` when the pinned one is not on the bus.
        """
        release = await self.refresh()
        last = await self._manifests.get_last()
        newest = last.sequence if last is not None else 0
        if not self._last_manifest.accept(newest):
            return self._target
        canary, first = None, True
        async for entry in self._manifests.newest_first(last):
            manifest = entry.event
            if release.pinned is None:
                is_target = is_servable(release, manifest)
                canary = manifest if first and is_pending_canary(release, manifest) else canary
            elif manifest.version < release.pinned:
                break
            else:
                is_target = manifest.version == release.pinned
            first = False
            if is_target:
                self._target = ServingTarget(manifest, canary)
                return self._target
        if release.pinned is not None and newest:
            raise BusError(f"version {release.pinned} is pinned and is not on the bus")
        self._target = ServingTarget(None, canary)
        return self._target

    async def list_versions(self) -> AsyncIterator[tuple[WeightManifest, int]]:
        """Manifests with their stream sequences, newest first."""
        async for entry in self._manifests.newest_first(await self._manifests.get_last()):
            yield entry.event, entry.sequence

    async def repair(self) -> list[str]:
        """Remove the messages that every reader passes over; returns why, one sentence each. Only an admin may."""
        locks = SignedLog(self._bus, subjects.swap_lock(self._model), self._model, SwapLockState)
        removed: dict[int, str] = {}
        while True:
            await self.refresh()
            await self._manifests.read_after(0)
            await locks.read_after(0)
            skipped = {
                sequence: verified.skip_reason(sequence)
                for verified in (self._manifests, self._decisions, locks)
                for sequence in verified.skipped
                if sequence not in removed
            }
            if not skipped:
                return list(removed.values())
            for sequence in skipped:
                with suppress(NotFoundError):
                    await self._bus.js.delete_msg(subjects.WEIGHTS, sequence)
            removed |= skipped

    async def manifests_of(self, version: int) -> list[tuple[WeightManifest, int]]:
        """Manifests of a version with their sequences, newest first: each life of a learner writes one.

        Raises `BusError` if the bus has none.
        """
        manifests = []
        async for manifest, sequence in self.list_versions():
            if manifest.version < version:
                break
            manifests += [(manifest, sequence)] if manifest.version == version else []
        if not manifests:
            raise BusError(
                f"model {self._model!r} has no version {version} on this bus: see `lightningbus weights list`"
            )
        return manifests

    async def find_expired_blob(self, manifest: WeightManifest) -> str:
        """The name of a file of a version that is not on the bus any more; empty: all are, or they lie elsewhere."""
        if manifest.transport != "bus":
            return ""
        needed = {(blob.bucket, blob.name) for blob in (*manifest.blobs, *(link.blob for link in manifest.chain))}
        stored = {
            (bucket, name)
            for bucket in {bucket for bucket, _ in needed}
            for name in await self._bus.object_store.list_names(bucket)
        }
        return min((name for _, name in needed - stored), default="")

    async def activations_of(self, since: int, version: int) -> list[WeightsActivated]:
        """Who went over to a version, in order; ``since`` is the sequence of its oldest manifest."""
        activations: list[WeightsActivated] = []
        while True:
            request = {"batch": BATCH, "seq": since + 1, "next_by_subj": subjects.ALL_ACTIVATIONS}
            page = await _batched_direct_get(self._bus, request, WeightsActivated)
            activations += [event for event, _ in page if (event.model, event.version) == (self._model, version)]
            if len(page) < BATCH:
                return activations
            since = page[-1][1]


async def list_models(bus: Bus) -> list[str]:
    """The models that have versions on a bus, by name."""
    request: dict[str, object] = {"batch": BATCH, "multi_last": [subjects.ALL_WEIGHTS]}
    return sorted({manifest.model for manifest, _ in await _batched_direct_get(bus, request, WeightManifest)})


async def _batched_direct_get(bus: Bus, request: dict[str, object], kind: type[E]) -> list[tuple[E, int]]:
    """The events that a request for several messages of WEIGHTS brings, with their sequences."""
    events: list[tuple[E, int]] = []
    async with batch_get(bus.nc, subjects.WEIGHTS, request, RESPONSE_TIMEOUT_SECONDS) as messages:
        async for message in messages:
            with suppress(DecodeError):
                events.append((decode(kind, message.data), sequence_of(message)))
    return events
