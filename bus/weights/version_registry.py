"""Versions of a model or a prompt on the bus: decisions about them, and older versions.

With keys, only messages signed by an authorised role count: see `lightningbus.bus.weights.signed_log`.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError, FencedError
from lightningbus.bus.weights.signed_log import Entry, SignedLog
from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion
from lightningbus.schemas.signers import ADMIN
from lightningbus.schemas.weights.events import (
    MAX_ACTOR_CHARS,
    MAX_REASON_CHARS,
    ReleaseDecision,
    ReleaseState,
    WeightManifest,
)
from lightningbus.schemas.weights.release_policy import (
    apply_decision,
    is_pending_canary,
    is_servable,
    is_successor,
    latest_verdict,
)

M = TypeVar("M", WeightManifest, PromptVersion)
R = TypeVar("R", ReleaseState, PromptReleaseState)

RESPONSE_TIMEOUT_SECONDS = 10.0
REPLICA_LAG_SECONDS = 30.0
"""Longest lag of a replica: an older state that lasts longer belongs to a stream made again."""
RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class VersionTarget(Generic[M]):
    """The version to serve now, and the canary; None: nothing."""

    serve: M | None = None
    canary: M | None = None


class MonotonicSequence:
    """The newest sequence seen on a subject, although single servers may lag."""

    def __init__(self, may_lag: Callable[[], bool] = lambda: True) -> None:
        """``may_lag`` returns whether the answer may be of a server that is behind others."""
        self._may_lag = may_lag
        self.sequence = 0
        """Last sequence in the stream; 0: none."""
        self._behind_since: float | None = None

    def accept(self, sequence: int) -> bool:
        """Accept a sequence as the last one, unless a lagging server may have returned it."""
        now = time.monotonic()
        if sequence < self.sequence:
            self._behind_since = now if self._behind_since is None else self._behind_since
            if self._may_lag() and now - self._behind_since < REPLICA_LAG_SECONDS:
                return False
        self.sequence, self._behind_since = sequence, None
        return True


class VersionRegistry(Generic[M, R]):
    """Versions of a model or a prompt; decisions are made by compare-and-set, so that concurrent ones are not lost."""

    stream: str
    """The stream of versions and decisions."""
    noun: str
    """The versioned thing, as errors name it."""
    command: str
    """The command that lists them."""

    def __init__(self, bus: Bus, name: str, versions: SignedLog[M], decisions: SignedLog[R], initial: R) -> None:
        self._bus, self._name = bus, name
        self._manifests: SignedLog[M] = versions
        self._decisions: SignedLog[R] = decisions
        self._initial: R = initial
        self._last_decision, self._last_manifest = (MonotonicSequence(lambda: bus.nc.is_of_cluster) for _ in range(2))
        self._read_up_to = 0
        """Sequence of the last decision that is part of the state, or was passed over."""
        self.state: R = initial
        """State at the last read."""
        self._target: VersionTarget[M] = VersionTarget()

    @property
    def problem(self) -> str:
        """Sentence about the newest version or decision if it is skipped; empty: it is not."""
        return self._manifests.skip_reason(self._last_manifest.sequence) or self._decisions.skip_reason(
            self._last_decision.sequence
        )

    async def refresh(self) -> R:
        """Read the current release state; an answer older than an earlier one is ignored.

        The state is built from all decisions, so that an unreadable or unauthorised one changes nothing.
        """
        last = await self._decisions.get_last()
        sequence = last.sequence if last is not None else 0
        if self._last_decision.accept(sequence):
            await self._read_decisions(sequence)
        return self.state

    async def _read_decisions(self, sequence: int) -> None:
        if sequence < self._read_up_to:  # the stream was made anew
            self.state, self._read_up_to = self._initial, 0
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

    def _is_snapshot(self, entry: Entry[R]) -> bool:
        """Return whether the state may begin with this entry, because earlier ones expired; only an admin pins."""
        return not self.state.decisions and (entry.signer == ADMIN or entry.event.pinned is None)

    async def append_decision(
        self,
        action: Literal["approved", "revoked", "pinned", "unpinned", "kept"],
        version: int,
        *,
        actor: str,
        reason: str = "",
        metrics: dict[str, float] | None = None,
        first_only: bool = False,
    ) -> R:
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
            msg_id = f"release:{self._name}:{version}:{last}:{secrets.token_hex(16)}"
            try:
                sequence = await self._bus.publish(
                    self._decisions.subject, after, msg_id=msg_id, expect_last=last, unique=True
                )
            except FencedError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if self._last_decision.accept(sequence):  # otherwise a concurrent read was newer
                self.state, self._read_up_to = after, sequence
            return after

    async def resolve_target(self) -> VersionTarget[M]:
        """Choose the version to serve now: the pinned one, else the newest that may be served.

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
                self._target = VersionTarget(manifest, canary)
                return self._target
        if release.pinned is not None and newest:
            raise BusError(f"version {release.pinned} is pinned and is not on the bus")
        self._target = VersionTarget(None, canary)
        return self._target

    async def list_versions(self) -> AsyncIterator[tuple[M, int]]:
        """Yield versions with their stream sequences, newest first."""
        async for entry in self._manifests.newest_first(await self._manifests.get_last()):
            yield entry.event, entry.sequence

    async def manifests_of(self, version: int) -> list[tuple[M, int]]:
        """List everything published as a version, with its sequences, newest first: each life of a learner writes one.

        Raises `BusError` if the bus has none.
        """
        manifests = []
        async for manifest, sequence in self.list_versions():
            if manifest.version < version:
                break
            manifests += [(manifest, sequence)] if manifest.version == version else []
        if not manifests:
            raise BusError(
                f"{self.noun} {self._name!r} has no version {version} on this bus: see `lightningbus {self.command}`"
            )
        return manifests

    async def repair(self) -> list[str]:
        """Remove the messages that every reader passes over; returns why, one sentence each. Only an admin may."""
        removed: dict[int, str] = {}
        while True:
            await self.refresh()
            logs = self._logs()
            for log in logs:
                await log.read_after(0)
            skipped = {
                sequence: log.skip_reason(sequence)
                for log in logs
                for sequence in log.skipped
                if sequence not in removed
            }
            if not skipped:
                return list(removed.values())
            for sequence in skipped:
                with suppress(NotFoundError):
                    await self._bus.js.delete_msg(self.stream, sequence)
            removed |= skipped

    def _logs(self) -> list[SignedLog[Any]]:
        return [self._decisions, self._manifests]
