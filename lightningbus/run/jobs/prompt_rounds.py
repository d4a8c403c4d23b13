"""Rounds of prompt optimisation in a training job: when one is due, under which weights, and what came of it."""

from collections.abc import Callable, Mapping
from typing import Protocol

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.run.evaluation.pinned_version import VersionPins
from lightningbus.run.processes.stack import LocalStack
from lightningbus.run.results.prompt_round import PromptRound


class RoundRunner(Protocol):
    """Runs a round on a bus that is up: `lightningbus.optimize.training_rounds`."""

    every: int
    """Weight versions between two rounds."""

    async def publish_originals(self, bus: Bus) -> None:
        """Publish version 0 of each prompt, unless the bus has it; raises `UserError`."""

    async def run(
        self, bus: Bus, client: Client, run: str, versions: Mapping[str, int], on_progress: Callable[[str], None]
    ) -> PromptRound | None:
        """Finish a round, also one that was interrupted; None: the budget does not suffice for one more."""


class PromptRounds:
    """The rounds of a job; a `lightningbus.run.evaluation.version_turns.Turn`."""

    def __init__(
        self,
        stack: LocalStack,
        client: Client,
        run: str,
        pins: VersionPins,
        runner: RoundRunner,
        rounds: list[PromptRound],
        on_change: Callable[[list[PromptRound]], None],
    ) -> None:
        """Begin with the ``rounds`` of earlier starts; ``on_change`` is called with all when one has begun or ended."""
        self._stack, self._client, self._run, self._pins, self._runner = stack, client, run, pins, runner
        self._rounds, self._on_change = list(rounds), on_change
        self._is_budget_spent = False

    async def pin_due(self, is_over: bool) -> dict[str, int] | None:
        """Pin the versions of the round that was interrupted, or the newest if a round is due.

        The first is due at version 0, and then at the first version at or after each multiple of `every`.
        """
        if self._is_budget_spent or await self._pins.is_taken():
            return None
        versions = await self._find_begun()
        if versions is None:
            await self._pins.unpin()
            newest = await self._pins.find_newest()
            if newest is None or not is_round_due(self._rounds, self._pins.main, newest, self._runner.every):
                return None
            versions = newest
        await self._pins.pin(versions, "prompts are being optimised")
        return versions

    async def run(self, versions: Mapping[str, int]) -> None:
        """Run a round under versions that are pinned; raises `UserError`, or as `Bus.publish`."""
        begun = PromptRound(state="begun", weight_versions=dict(versions))
        self._keep(begun)
        await self._stack.wait_until_served(versions)
        work = self._runner.run(self._stack.bus, self._client, self._run, versions, self._stack.view.set_note)
        finished = await self._stack.or_child_failure(work)
        if finished is None:
            self._is_budget_spent = True
            self._rounds.remove(begun)
            self._on_change(self._rounds)
            await self._pins.unpin()
        else:
            self._keep(finished)

    async def _find_begun(self) -> dict[str, int] | None:
        """Find the versions of the round that was interrupted; None: there is none."""
        for begun in [each for each in self._rounds if each.state == "begun"]:
            if await self._pins.are_loadable(begun.weight_versions):
                return begun.weight_versions
            self._keep(begun.model_copy(update={"state": "abandoned"}))
        return None

    def _keep(self, changed: PromptRound) -> None:
        self._rounds = put_round(self._rounds, changed)
        self._on_change(self._rounds)


def put_round(rounds: list[PromptRound], changed: PromptRound) -> list[PromptRound]:
    """Put a round in place of the one under the same weights, or at the end. Pure."""
    others = [each for each in rounds if each.weight_versions != changed.weight_versions]
    return [*others, changed]


def is_round_due(rounds: list[PromptRound], main: str, newest: Mapping[str, int], every: int) -> bool:
    """Return whether no round has begun since the last multiple of ``every`` versions. Pure."""
    covered = {each.weight_versions[main] // every for each in rounds}
    return newest[main] // every not in covered
