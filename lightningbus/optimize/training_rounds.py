"""Rounds of prompt optimisation for `lightningbus train`: `lightningbus.run.jobs.prompt_rounds.RoundRunner`."""

from collections.abc import Callable, Mapping

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.optimize.catalog import PromptCatalog
from lightningbus.optimize.early_checks import check_before_start
from lightningbus.optimize.plan.budget import BudgetSpentError
from lightningbus.optimize.round import optimize_round
from lightningbus.run.results.prompt_round import PromptRound
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.run.settings.run_file import RunSettings


class TrainingRounds:
    """Rounds of prompt optimisation between training steps, as the run file's section ``optimize`` sets them."""

    def __init__(self, settings: OptimizeSettings, run: str, role_models: Mapping[str, str]) -> None:
        """Check the settings, without starting anything.

        Raises `UserError` where they allow no round, or `lightningbus.tasks.errors.TaskFileError`.
        """
        assert settings.every is not None
        check_before_start(settings, run)
        self.every = settings.every
        self._settings, self._role_models = settings, role_models

    async def publish_originals(self, bus: Bus) -> None:
        """Publish version 0 of each prompt that the bus lacks; raises `UserError`."""
        settings = self._settings
        await PromptCatalog(bus, "", "", settings.agent, settings.max_drop).publish_originals(settings.prompts)

    async def run(
        self, bus: Bus, client: Client, run: str, versions: Mapping[str, int], on_progress: Callable[[str], None]
    ) -> PromptRound | None:
        """Run a round, or continue an interrupted one; return None if the budget does not suffice for one more."""
        try:
            done = await optimize_round(bus, client, run, self._settings, versions, self._role_models, on_progress)
        except BudgetSpentError as error:
            on_progress(str(error))
            return None
        return PromptRound(
            state="finished",
            weight_versions=dict(versions),
            prompt_versions=dict(done.versions),
            is_released=done.is_released,
            before=done.comparison.before if done.comparison is not None else None,
            after=done.comparison.after if done.comparison is not None else None,
            rollouts=done.num_rollouts,
            candidates=done.num_candidates,
        )


def training_rounds(settings: RunSettings) -> TrainingRounds | None:
    """Return the rounds of a training job, None if it trains weights only. Raises `UserError`, or as `load_tasks`."""
    if settings.optimize is None or settings.optimize.every is None:
        return None
    return TrainingRounds(settings.optimize, settings.name, settings.role_models)
