"""Choice of each prompt's version for a rollout: the one its task is pinned to, else the released one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg

from lightningbus.bus.client import Bus
from lightningbus.bus.prompts import PromptRegistry, find_prompt_names
from lightningbus.runners.protocol.prompts import PromptChoice
from lightningbus.schemas import subjects
from lightningbus.schemas.prompts import PromptVersion
from lightningbus.schemas.tasks import Task

RECHECK_SECONDS = 30.0
"""Seconds for which an answer of the bus is used when no message reported a change."""


class PromptUnavailableError(Exception):
    """The bus has no such prompt, or no such version."""


class AgentPrompts:
    """The prompts of one agent on the bus; read again when a message about prompts comes."""

    def __init__(self, bus: Bus, agent: str) -> None:
        self._bus, self._agent = bus, agent
        self._registries: dict[str, PromptRegistry] = {}
        self._versions: dict[str, dict[int, PromptVersion]] = {}
        self._current: dict[str, PromptVersion] = {}
        """Version of each prompt of this agent for tasks without a pin."""
        self._is_stale, self._read_at = True, 0.0
        self._reading = asyncio.Lock()

    @asynccontextmanager
    async def following(self) -> AsyncIterator["AgentPrompts"]:
        """Watch for changes while the block runs."""

        async def on_change(message: Msg) -> None:
            self._is_stale = True

        subscriptions = [
            await self._bus.nc.subscribe(subject, cb=on_change)
            for subject in (subjects.ALL_PROMPTS, subjects.ALL_PROMPT_RELEASES)
        ]
        try:
            yield self
        finally:
            if self._bus.nc.is_connected:
                for subscription in subscriptions:
                    await subscription.unsubscribe()

    async def choose(self, task: Task) -> tuple[PromptChoice, ...]:
        """Choose the prompts of a rollout; they stay the same to its end.

        Raises `PromptUnavailableError`, `BusError` or nats' errors.
        """
        async with self._reading:
            if self._is_stale or time.monotonic() - self._read_at > RECHECK_SECONDS:
                await self._read()
            elif any(version not in self._versions.get(name, {}) for name, version in task.prompt_versions.items()):
                await self._read()  # its message is behind the task's
        for name, version in task.prompt_versions.items():
            if version not in self._versions.get(name, {}):
                known = "no such prompt" if name not in self._versions else f"{len(self._versions[name])} versions"
                raise PromptUnavailableError(
                    f"the task is pinned to version {version} of prompt {name!r}, which is not on the bus ({known})"
                )
            if self._versions[name][version].agent != self._agent:
                raise PromptUnavailableError(f"prompt {name!r} is of agent {self._versions[name][version].agent!r}")
        chosen = {
            **self._current,
            **{name: self._versions[name][version] for name, version in task.prompt_versions.items()},
        }
        return tuple(self._to_choice(version) for _, version in sorted(chosen.items()))

    async def _read(self) -> None:
        self._is_stale = False  # a message meanwhile makes it stale again
        try:
            current = {}
            for name in await find_prompt_names(self._bus):
                registry = self._registries.setdefault(name, PromptRegistry(self._bus, name))
                versions = {version.version: version for version in await registry.read_all()}
                self._versions[name] = versions
                serve = (await registry.resolve_target()).serve
                if serve is None and 0 in versions:
                    serve = versions[0]  # the agent's own text is always a fallback
                if serve is not None and serve.agent == self._agent:
                    current[name] = serve
            self._current, self._read_at = current, time.monotonic()
        except BaseException:
            self._is_stale = True
            raise

    def _to_choice(self, version: PromptVersion) -> PromptChoice:
        original = self._versions[version.name].get(0, version)
        return PromptChoice(version.name, version.version, version.text, original.text, version.role)
