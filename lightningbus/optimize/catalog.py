"""The prompts of an optimisation on the bus: where it began, what was proposed, and which version has which text."""

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
"""Before a round's key: the id of the proposal that says where the round began."""


class PromptCatalog:
    """The prompts in a round. Whatever is published here is found again by a round that is started again.

    A round counts its own versions only: what another said of the same text was under other weights.
    """

    def __init__(self, bus: Bus, run: str, round_name: str, agent: str, max_drop: float) -> None:
        self._bus, self._run, self._round, self._agent = bus, run, round_name, agent
        self._canary = PromptCanary(max_drop=max_drop)
        self._registries: dict[str, PromptRegistry] = {}
        self._versions: dict[str, list[PromptVersion]] = {}
        self._starts: dict[str, PromptVersion] = {}
        self.is_resumed = False
        """Whether an earlier life has begun the round."""

    async def open(self, prompts: Mapping[str, PromptSettings], key: str) -> Texts:
        """The texts that the round begins with: those in use when it first began. ``key`` says with which settings.

        Raises `UserError` where they are not what they were, or as `Bus.publish`.
        """
        await self.publish_originals(prompts)
        for name in prompts:
            self._starts[name] = await self._start_of(name, key)
        return {name: start.text for name, start in self._starts.items()}

    async def publish_originals(self, prompts: Mapping[str, PromptSettings]) -> None:
        """Publish version 0 of each, unless the bus has it; raises `UserError` where it has another."""
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
                    f"run {self._run!r} began with other prompts, problems or settings of optimize: "
                    "give this one another name"
                )
            return begun[0]
        used = await self._used(name)
        id = self._id(START, key)
        return await self._publish(
            name, used.text, role=used.role, canary=self._canary, proposal_id=id, parent=used.version
        )

    def _id(self, *parts: str) -> str:
        """Of a proposal: a round finds its own only."""
        return ":".join((self._round, *parts))

    async def _used(self, name: str) -> PromptVersion:
        """The version that rollouts have which are pinned to none."""
        return (await self._registries[name].resolve_target()).serve or self._versions[name][0]

    def find_proposal(self, name: str, proposal_id: str) -> str | None:
        """The text that an earlier life proposed; None: it did not get so far."""
        for version in self._versions[name]:
            if (version.run_id, version.proposal_id) == (self._run, self._id(proposal_id)):
                return version.text
        return None

    async def add_proposal(self, name: str, text: str, proposal_id: str, parent_text: str) -> None:
        """Publish a proposed text as a version that waits for its evaluation; raises as `Bus.publish`."""
        role = self._versions[name][0].role
        parent = self._version_of(name, parent_text)
        await self._publish(
            name, text, role=role, canary=self._canary, proposal_id=self._id(proposal_id), parent=parent
        )

    def versions_of(self, texts: Texts) -> dict[str, int]:
        """The version of each text: the one in use when the round began, or the first of the round that has it."""
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
        """Release a version, or revoke it; returns it. What was decided of it before stays."""
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
