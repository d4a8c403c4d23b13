"""The prompt versions of an optimisation on the bus: its starting texts and its proposals."""

from collections.abc import Mapping
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.bus.prompts import PromptRegistry
from lightningbus.optimize.plan.candidates import Texts
from lightningbus.run.errors import UserError
from lightningbus.run.results.prompt_files import read_prompt_text
from lightningbus.run.settings.optimize import PromptSettings
from lightningbus.schemas.prompts import PromptCanary, PromptVersion, digest_of

START = "start"
"""Prefix of the proposal id that records a round's starting text; the round's key follows."""


class PromptCatalog:
    """The prompt versions of one round. A restarted round finds those it has published.

    Versions of other rounds are ignored, even of the same text: they were evaluated under other weights.
    """

    def __init__(self, bus: Bus, run: str, round_name: str, agent: str, max_drop: float) -> None:
        self._bus, self._run, self._round, self._agent = bus, run, round_name, agent
        self._canary = PromptCanary(max_drop=max_drop)
        self._registries: dict[str, PromptRegistry] = {}
        self._versions: dict[str, list[PromptVersion]] = {}
        self._starts: dict[str, PromptVersion] = {}
        self.is_resumed = False
        """Whether this round was begun before a restart."""

    async def open(self, prompts: Mapping[str, PromptSettings], key: str) -> Texts:
        """Return the texts that the round starts from: those in use when it first began.

        ``key`` identifies the round's settings. Raises `UserError` where prompts or settings have changed since then,
        or as `Bus.publish`.
        """
        await self.publish_originals(prompts)
        for name in prompts:
            self._starts[name] = await self._start_of(name, key)
        return {name: start.text for name, start in self._starts.items()}

    async def publish_originals(self, prompts: Mapping[str, PromptSettings]) -> None:
        """Publish version 0 of each prompt that the bus lacks; raises `UserError` where the bus has another text."""
        for name, settings in prompts.items():
            registry = self._registries[name] = PromptRegistry(self._bus, name)
            self._versions[name] = await registry.read_all()
            original = read_prompt_text(name, settings)
            if not self._versions[name]:
                await self._publish(name, original, role=settings.role, canary=None, proposal_id="", parent=None)
            first = next((version for version in self._versions[name] if version.version == 0), None)
            if first is None or first.text != original or (first.agent, first.role) != (self._agent, settings.role):
                raise UserError(
                    f"prompt {name!r}: the bus knows it with another text, agent or role than the run file: give it "
                    "another name, since its versions were made for what the agent sent then"
                )

    async def _start_of(self, name: str, key: str) -> PromptVersion:
        begun = [
            version
            for version in self._versions[name]
            if version.run_id == self._run and version.proposal_id.startswith(self._id(START))
        ]
        if begun:
            self.is_resumed = True
            if begun[0].proposal_id != self._id(START, key):
                raise UserError(
                    f"run {self._run!r} began with other prompts, tasks or settings of optimize: "
                    "give this one another name"
                )
            return begun[0]
        used = await self._used(name)
        id = self._id(START, key)
        return await self._publish(
            name, used.text, role=used.role, canary=self._canary, proposal_id=id, parent=used.version
        )

    def _id(self, *parts: str) -> str:
        """Return a proposal id that begins with the round's name, so that a round finds only its own."""
        return ":".join((self._round, *parts))

    async def _used(self, name: str) -> PromptVersion:
        """Return the version that rollouts use unless they are pinned to another."""
        return (await self._registries[name].resolve_target()).serve or self._versions[name][0]

    def find_proposal(self, name: str, proposal_id: str) -> str | None:
        """Return the text of a proposal made before a restart; None if there is none."""
        for version in self._versions[name]:
            if (version.run_id, version.proposal_id) == (self._run, self._id(proposal_id)):
                return version.text
        return None

    async def add_proposal(self, name: str, text: str, proposal_id: str, parent_text: str) -> None:
        """Publish a proposed text as a version that awaits its evaluation; raises as `Bus.publish`."""
        role = self._versions[name][0].role
        parent = self._version_of(name, parent_text)
        await self._publish(
            name, text, role=role, canary=self._canary, proposal_id=self._id(proposal_id), parent=parent
        )

    def versions_of(self, texts: Texts) -> dict[str, int]:
        """Return the version of each text: the one in use when the round began, or the round's first with that text."""
        return {name: self._version_of(name, text) for name, text in texts.items()}

    def _version_of(self, name: str, text: str) -> int:
        start = self._starts[name]
        if text == start.text:
            assert start.parent is not None, "a start says which version it stands for"
            return start.parent
        return min(
            version.version
            for version in self._versions[name]
            if version.text == text and version.run_id == self._run and version.proposal_id.startswith(self._id(""))
        )

    async def decide(self, name: str, text: str, *, is_approved: bool, reason: str, metrics: dict[str, float]) -> int:
        """Release or revoke the version of a text, unless that was decided before; return the version."""
        version = self._version_of(name, text)
        await self._registries[name].append_decision(
            "approved" if is_approved else "revoked",
            version,
            actor=f"optimize:{self._run}",
            reason=reason,
            metrics=metrics,
            first_only=True,
        )
        return version

    async def _publish(self, name: str, text: str, **fields: Any) -> PromptVersion:
        run_id = self._run if fields["proposal_id"] else None
        version = PromptVersion(
            name=name, version=0, text=text, sha256=digest_of(text), agent=self._agent, run_id=run_id, created_at_ns=0,
            **fields,
        )  # fmt: skip
        published = await self._registries[name].publish(version)
        self._versions[name].append(published)
        return published
