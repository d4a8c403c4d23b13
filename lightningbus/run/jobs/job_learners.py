"""The learners of a training job: their settings, which may change, and their processes."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lightningbus.common.aio import run_unless
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.processes.supervisor import ChildSpec, Supervisor
from lightningbus.run.settings.setting_change import change_learner

EARLY_END_SECONDS = 600.0
"""Longest wait for learners where training ends early: a step under way cannot be interrupted."""


class JobLearners:
    """Learners of one start of a job; the first one trains the model that agents call by name."""

    def __init__(self, supervisor: Supervisor, names: Sequence[str], learners: Sequence[LearnerSettings]) -> None:
        """``names`` are those of the processes."""
        self._supervisor = supervisor
        self._by_name = dict(zip(names, learners, strict=True))

    @property
    def by_name(self) -> Mapping[str, LearnerSettings]:
        """The settings of each learner now, by the name of its process."""
        return self._by_name

    @property
    def settings(self) -> Sequence[LearnerSettings]:
        """The settings of each learner now."""
        return list(self._by_name.values())

    @property
    def models(self) -> Sequence[str]:
        """The models that are trained."""
        return [learner.model for learner in self.settings]

    async def start(self) -> None:
        """Start the processes."""
        for name, settings in self._by_name.items():
            await self._supervisor.start(ChildSpec(name, "learner", settings))

    async def wait_finished(self, following: "asyncio.Task[None]") -> None:
        """Wait until every process has ended by itself; raise `UserError` if one failed, or what ``following`` does."""
        for name in self._by_name:
            await run_unless(following, self._supervisor.wait_finished(name))

    async def stop(self) -> None:
        """End the processes before their last step."""
        await self._supervisor.stop(*self._by_name, seconds=EARLY_END_SECONDS)

    async def change(self, model: str, fields: Mapping[str, Any]) -> LearnerSettings | None:
        """Give the learner of a model other settings from its next step on; return those before, None if it has them.

        ``model`` may be empty where there is one learner. Raises `UserError` for settings that it cannot have.
        """
        if (not model and len(self._by_name) > 1) or (model and model not in self.models):
            raise UserError(f"name the model of the change: {' or '.join(self.models)}")
        name, before = next(item for item in self._by_name.items() if model in ("", item[1].model))
        changed = change_learner(before, fields, is_alone=len(self._by_name) == 1)
        if changed == before:
            return None
        self._by_name[name] = changed
        await self._supervisor.restart(ChildSpec(name, "learner", changed))
        return before
