"""Texts tried on problems: rollouts that exist already count, what is missing is published and waited for."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.streams.specs import STORE_EVAL, STORE_EVENTS, ConsumerSpec, runner_consumer
from lightningbus.optimize.catalog import PromptCatalog
from lightningbus.optimize.feedback import RolloutResult
from lightningbus.optimize.plan.budget import Budget
from lightningbus.optimize.plan.candidates import Texts, evaluation_key
from lightningbus.optimize.plan.prompt_use import check_prompts_used
from lightningbus.optimize.rollout_reader import count_ended, read_prompts_used, read_published, read_results
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.publishing import expand_samples, publish_all
from lightningbus.run.settings.optimize import PromptSettings
from lightningbus.schemas import ids
from lightningbus.tasks.task_file import TaskInput

log = logging.getLogger(__name__)
T = TypeVar("T")

PUBLISH_SECONDS = 600.0
SETTLE_SECONDS = 600.0
"""How long a restarted run waits for what an earlier life has queued; later the broker has forgotten its ids."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all rollouts of an optimisation."""

    run: str
    evaluation: str
    """The evaluation that all rollouts of the round belong to."""
    agent: str
    model: str
    role_models: Mapping[str, str]
    """Models that answer for some roles."""
    weight_versions: Mapping[str, int]
    """By model: the version its calls are pinned to; a model that is not here: its current one."""
    sampling: Mapping[str, Any]
    deadline: float


class Evaluator:
    """Runs texts on problems within a budget."""

    def __init__(self, bus: Bus, stores: Fleet, client: Client, catalog: PromptCatalog, conditions: Conditions) -> None:
        self._bus, self._stores, self._client = bus, stores, client
        self._catalog, self._conditions = catalog, conditions

    async def read_published(self) -> dict[str, str]:
        """The evaluation of every rollout that any round of the run has published, by rollout id."""
        return await self._ask(lambda: read_published(self._client, self._conditions.run))

    async def wait_until_stored(self) -> None:
        """Wait until the store has all that an earlier life has published.

        So until nothing of this agent's evaluations is queued or on its way.
        """
        consumers = (STORE_EVENTS, STORE_EVAL, runner_consumer(self._conditions.agent, "eval"))
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while not await self._has_settled(consumers):
                    await self._stores.wait_for_change()
        except TimeoutError:
            log.warning("evaluations of agent %s are still queued after %g s", self._conditions.agent, SETTLE_SECONDS)

    async def _has_settled(self, consumers: Sequence[ConsumerSpec]) -> bool:
        for consumer in reversed(consumers):  # what is done moves from the agent to the store
            try:
                backlog = await self._bus.backlog(consumer)
            except NotFoundError:  # no runner has been here yet
                continue
            if backlog.num_pending or backlog.num_ack_pending:
                return False
        return True

    async def evaluate(
        self, budget: Budget, texts: Texts, problems: Sequence[TaskInput], samples: int, with_traces: bool = False
    ) -> list[list[RolloutResult]]:
        """The results of each problem, a list of ``samples`` each.

        Raises `BudgetSpentError` before anything is published, `UserError` when rollouts do not end, or as
        `publish_all`.
        """
        at = self._conditions
        key = evaluation_key(texts, at.weight_versions, at.sampling)
        tasks = list(
            expand_samples(
                problems,
                samples,
                f"@{at.run}-{key}",
                run_id=at.run,
                agent=at.agent,
                model=at.model,
                mode="eval",
                evaluation=at.evaluation,
                role_models=dict(at.role_models),
                prompt_versions=self._catalog.versions_of(texts),
                weight_versions=dict(at.weight_versions),
                sampling_params=dict(at.sampling),
                deadline=at.deadline,
            )
        )
        inputs = {ids.rollout_id(task.id, task.sample_index): task.input for task in tasks}
        missing = budget.admit(list(inputs))
        new = [task for task in tasks if ids.rollout_id(task.id, task.sample_index) in missing]
        await publish_all(self._bus, new, timeout=PUBLISH_SECONDS, on_done=lambda: None)
        await self._wait_until_ended(list(inputs), patience=2 * at.deadline + 60)
        results = await self._ask(lambda: read_results(self._client, at.run, inputs, with_traces))
        ordered = [results[rollout] for rollout in inputs]
        return [ordered[first : first + samples] for first in range(0, len(ordered), samples)]

    async def check_prompts_used(
        self, prompts: Mapping[str, PromptSettings], results: Sequence[Sequence[RolloutResult]]
    ) -> None:
        """Raise `UserError` where no model call of rollouts that have ended had one of these prompts."""
        all_results = [result for rollouts in results for result in rollouts]
        rollout_ids = [result.rollout_id for result in all_results]
        num_calls, used = await self._ask(lambda: read_prompts_used(self._client, self._conditions.run, rollout_ids))
        check_prompts_used(prompts, used, num_calls, all_results)

    async def _wait_until_ended(self, rollout_ids: Sequence[str], patience: float) -> None:
        """Wait for all; ``patience``: seconds in which at least one must end."""
        loop, num_ended = asyncio.get_running_loop(), -1
        try:
            async with asyncio.timeout(patience) as limit:
                while num_ended < len(rollout_ids):
                    before = num_ended
                    num_ended = await self._ask(lambda: count_ended(self._client, self._conditions.run, rollout_ids))
                    if num_ended > before:
                        limit.reschedule(loop.time() + patience)
                    if num_ended < len(rollout_ids):
                        await self._stores.wait_for_change()  # the store says each second what it has inserted
        except TimeoutError:
            raise UserError(
                f"only {max(num_ended, 0)} of {len(rollout_ids)} rollouts have ended, and none for {patience:g} s: "
                f"is a runner of agent {self._conditions.agent!r} up?"
            ) from None

    async def _ask(self, work: Callable[[], T]) -> T:
        """The result of blocking ``work``; a store that is being started again is waited for."""
        while True:
            try:
                return await asyncio.to_thread(work)
            except ClickHouseError as error:
                log.warning("the store cannot be asked: %s", " ".join(str(error).split())[:200])
                await self._stores.wait_for_change()
