"""Evaluates prompt texts on tasks: existing rollouts count, missing ones are published and awaited."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clickhouse_connect.driver.client import Client
from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.streams.specs import STORE_EVAL, STORE_EVENTS, ConsumerSpec, runner_consumer
from lightningbus.optimize.catalog import PromptCatalog
from lightningbus.optimize.feedback import RolloutResult
from lightningbus.optimize.plan.budget import Budget
from lightningbus.optimize.plan.candidates import Texts, evaluation_key
from lightningbus.optimize.plan.prompt_use import check_prompts_used
from lightningbus.optimize.rollout_reader import read_prompts_used, read_published, read_results
from lightningbus.run.evaluation.batch import RolloutBatch
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.evaluation.retrying_store import RetryingStore
from lightningbus.run.settings.optimize import PromptSettings
from lightningbus.tasks.task_loading import TaskInput

log = logging.getLogger(__name__)

SETTLE_SECONDS = 600.0
"""Longest wait of a restarted run for rollouts it had queued before; later the broker has forgotten their ids."""


class Evaluator:
    """Evaluates prompt texts on tasks within a budget of rollouts."""

    def __init__(
        self, bus: Bus, stores: Fleet, client: Client, catalog: PromptCatalog, request: RolloutRequest
    ) -> None:
        """Keep the arguments. ``request`` holds the settings common to all rollouts of the round."""
        self._bus, self._store = bus, RetryingStore(client, stores)
        self._catalog, self._request = catalog, request

    async def read_published(self) -> dict[str, str]:
        """Return the evaluation of every rollout that any round of the run has published, by rollout id."""
        return await self._store.ask(lambda client: read_published(client, self._request.run))

    async def wait_until_stored(self) -> None:
        """Wait until the store has every rollout published before a restart.

        That is when no evaluation of this agent is queued or in progress. After `SETTLE_SECONDS` it logs a warning.
        """
        consumers = (STORE_EVENTS, STORE_EVAL, runner_consumer(self._request.agent, "eval"))
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while not await self._has_settled(consumers):
                    await self._store.wait_for_change()
        except TimeoutError:
            log.warning("evaluations of agent %s are still queued after %g s", self._request.agent, SETTLE_SECONDS)

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
        self, budget: Budget, texts: Texts, tasks: Sequence[TaskInput], samples: int, with_traces: bool = False
    ) -> list[list[RolloutResult]]:
        """Run each task ``samples`` times under these texts, and return a list of results for each task.

        Raises `BudgetSpentError` before anything is published, `UserError` when rollouts do not end, or as
        `publish_all`.
        """
        key = evaluation_key(texts, self._request.weight_versions, self._request.sampling)
        versions = self._catalog.versions_of(texts)
        request = replace(self._request, samples=samples, prompt_versions=versions, id_parts=(key,))
        batch = RolloutBatch(request, tasks)
        inputs = {rollout_id: task.input for rollout_id, task in batch.tasks.items()}
        results = await batch.run(
            self._bus,
            self._store,
            lambda client: read_results(client, request.run, inputs, with_traces),
            what=f"evaluation {request.evaluation}",
            advice=f"is a runner of agent {request.agent!r} up?",
            missing=budget.admit(list(inputs)),
        )
        ordered = [results[rollout_id] for rollout_id in inputs]
        return [ordered[first : first + samples] for first in range(0, len(ordered), samples)]

    async def check_prompts_used(
        self, prompts: Mapping[str, PromptSettings], results: Sequence[Sequence[RolloutResult]]
    ) -> None:
        """Raise `UserError` if one of the prompts was in no model call of these finished rollouts."""
        all_results = [result for rollouts in results for result in rollouts]
        rollout_ids = [result.rollout_id for result in all_results]
        run = self._request.run
        num_calls, used = await self._store.ask(lambda client: read_prompts_used(client, run, rollout_ids))
        check_prompts_used(prompts, used, num_calls, all_results)
