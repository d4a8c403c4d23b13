"""The prompts on the bus: their versions, which may be used, and new ones."""

import secrets
import time

from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.batch_get import batch_get
from lightningbus.bus.weights.signed_log import SignedLog
from lightningbus.bus.weights.version_registry import RESPONSE_TIMEOUT_SECONDS, VersionRegistry
from lightningbus.schemas import subjects
from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion


class PromptRegistry(VersionRegistry[PromptVersion, PromptReleaseState]):
    """Versions of a prompt, and which of them may be used."""

    stream, noun, command = subjects.PROMPTS, "prompt", "prompts list"

    def __init__(self, bus: Bus, name: str) -> None:
        super().__init__(
            bus,
            name,
            SignedLog(bus, subjects.prompt(name), name, PromptVersion, stream=subjects.PROMPTS),
            SignedLog(bus, subjects.prompt_release(name), name, PromptReleaseState, stream=subjects.PROMPTS),
            PromptReleaseState(name=name),
        )
        self._versions: dict[int, PromptVersion] = {}
        self._versions_read_up_to = 0

    async def publish(self, version: PromptVersion) -> PromptVersion:
        """Publish a version under the number after the last one; returns it with that number.

        Raises as `Bus.publish`: `FencedError` if another writer was quicker.
        """
        last = await self._manifests.get_last()
        number = 0
        async for entry in self._manifests.newest_first(last):
            number = entry.event.version + 1
            break
        numbered = replace(version, version=number, created_at_ns=time.time_ns())
        msg_id = f"prompt:{self._name}:{number}:{secrets.token_hex(16)}"
        expect_last = last.sequence if last is not None else 0
        await self._bus.publish(self._manifests.subject, numbered, msg_id=msg_id, expect_last=expect_last, unique=True)
        return numbered

    async def read_all(self) -> list[PromptVersion]:
        """List every version, oldest first; only new ones are fetched."""
        last = await self._manifests.get_last()
        if last is None or last.sequence < self._versions_read_up_to:  # the stream was made anew
            self._versions, self._versions_read_up_to = {}, 0
        if last is not None and last.sequence > self._versions_read_up_to:
            entries, self._versions_read_up_to = await self._manifests.read_after(self._versions_read_up_to)
            for entry in entries:
                self._versions.setdefault(entry.event.version, entry.event)
        return list(self._versions.values())


async def find_prompt_names(bus: Bus) -> list[str]:
    """List the names of all prompts on the bus, sorted; raise `BusError` where it does not answer."""
    request = {"multi_last": [subjects.ALL_PROMPTS]}
    names = set()
    async with batch_get(bus.nc, subjects.PROMPTS, request, RESPONSE_TIMEOUT_SECONDS) as messages:
        async for message in messages:
            names.add((message.headers or {})["Nats-Subject"].rpartition(".")[2])
    return sorted(names)


async def check_prompt_exists(bus: Bus, name: str) -> None:
    """Raise `BusError` unless the bus has a prompt of this name."""
    names = await find_prompt_names(bus)
    if name not in names:
        known = ", ".join(names) or "none"
        raise BusError(f"no prompt is called {name!r} on this bus; these are: {known}")
