"""One round of prompt optimisation on a running bus: from the prompts in use to a version that is released, or not.

`optimize_round` needs runners, a store and a model that answers; it starts nothing. A job that trains weights calls it
between steps, with the weight versions that its rollouts must have.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from clickhouse_connect.driver.client import Client
from gepa.api import optimize
from gepa.core.state import GEPAState

from lightningbus.bus.client import Bus
from lightningbus.optimize.adapter import BusAdapter
from lightningbus.optimize.catalog import PromptCatalog
from lightningbus.optimize.evaluator import Evaluator
from lightningbus.optimize.feedback import RolloutResult
from lightningbus.optimize.plan.budget import Budget, BudgetSpentError
from lightningbus.optimize.plan.candidates import Texts, round_name
from lightningbus.optimize.plan.round_plan import (
    check_settings,
    describe_course,
    find_limit,
    heldout_rollouts,
    iteration_rollouts,
)
from lightningbus.optimize.plan.verdict import Comparison, compare
from lightningbus.optimize.reflection import ReflectingModel
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.tasks.task_loading import TaskInput, load_tasks

log = logging.getLogger(__name__)

SPARE_SECONDS = 60.0
"""Seconds, beyond twice the limit of one rollout, without a finished rollout after which the round ends with an error.
"""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Result of a round."""

    texts: Texts
    """Texts with the best mean reward on the tasks they were tried on."""
    comparison: Comparison | None
    """Held-out reward before and after; None: nothing was better."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The versions of the prompts that changed."""
    num_rollouts: int = 0
    """Rollouts published in the round, before and after restarts."""
    num_candidates: int = 0

    @property
    def is_released(self) -> bool:
        """Whether training has the new versions from now on."""
        return self.comparison is not None and self.comparison.is_approved


async def optimize_round(
    bus: Bus,
    client: Client,
    run: str,
    settings: OptimizeSettings,
    weight_versions: Mapping[str, int] = MappingProxyType({}),
    role_models: Mapping[str, str] = MappingProxyType({}),
    on_progress: Callable[[str], None] = log.info,
) -> RoundResult:
    """Search for better prompts, then release the best if held-out rewards do not fall by it.

    A restart with the same ``run`` and ``weight_versions`` continues the round: nothing is evaluated twice. Other
    weight versions make another round, which begins with the prompts in use by then.

    ``weight_versions``: the version that answers, by model. ``role_models``: models that answer for some roles.

    Raises `BudgetSpentError` where other rounds of the run have left too little, `UserError`,
    `lightningbus.tasks.errors.TaskFileError`, or as `Bus.publish`.
    """
    name = round_name(weight_versions)
    tasks, heldout = load_tasks(settings.tasks), load_tasks(settings.heldout)
    check_settings(settings, tasks, heldout, run)
    reflecting = ReflectingModel(settings.reflection)
    request = RolloutRequest(
        run=run,
        evaluation=name,
        agent=settings.agent,
        model=settings.model,
        role_models=role_models,
        weight_versions=weight_versions,
        sampling={} if settings.temperature is None else {"temperature": settings.temperature},
        rollout_timeout=settings.deadline,
        deadline=settings.deadline + SPARE_SECONDS,
    )
    catalog = PromptCatalog(bus, run, name, settings.agent, settings.max_drop)
    async with bus.fleet("store") as stores:
        evaluator = Evaluator(bus, stores, client, catalog, request)
        published = await evaluator.read_published()
        num_by_others = sum(each != name for each in published.values())
        limit = find_limit(settings, tasks, heldout, num_by_others)
        start = await catalog.open(settings.prompts, describe_course(settings, tasks, heldout))
        if catalog.is_resumed:
            await evaluator.wait_until_stored()
            published = await evaluator.read_published()
        budget = Budget(limit, {id for id, each in published.items() if each == name})
        search = _Search(
            settings, evaluator, catalog, reflecting, budget, tasks, heldout, on_progress, is_first=not num_by_others
        )
        best = await search.run(start)
        if best == start:
            return RoundResult(best, None, {}, len(budget.published), search.num_candidates)
        on_progress("held-out tasks under the prompts in use, then under the best")
        answers = []
        for texts in (start, best):
            answers.append(await evaluator.evaluate(budget, texts, heldout, settings.heldout_samples))
    comparison = compare(_means(answers[0]), _means(answers[1]), settings.max_drop)
    versions = {}
    for name in sorted(name for name in best if best[name] != start[name]):
        versions[name] = await catalog.decide(
            name, best[name], is_approved=comparison.is_approved, reason=comparison.reason, metrics=comparison.metrics
        )
    return RoundResult(best, comparison, versions, len(budget.published), search.num_candidates)


class _Search:
    """GEPA's search for better texts on the tasks."""

    def __init__(
        self,
        settings: OptimizeSettings,
        evaluator: Evaluator,
        catalog: PromptCatalog,
        reflecting: ReflectingModel,
        budget: Budget,
        tasks: list[TaskInput],
        heldout: list[TaskInput],
        on_progress: Callable[[str], None],
        *,
        is_first: bool,
    ) -> None:
        """Prepare the search. ``is_first``: no earlier round has checked that model calls contain the prompts."""
        self._settings, self._evaluator, self._budget, self._tasks = settings, evaluator, budget, tasks
        self._on_progress, self._must_check_prompts = on_progress, is_first
        self._reserved = heldout_rollouts(settings, heldout)
        self._adapter = BusAdapter(
            asyncio.get_running_loop(),
            self._evaluate,
            catalog,
            reflecting.ask,
            len(tasks),
            settings.reflection.max_chars,
            settings.max_prompt_chars,
        )

    @property
    def num_candidates(self) -> int:
        """Number of texts evaluated on all tasks."""
        return len(self._adapter.scores)

    async def run(self, start: Texts) -> Texts:
        """Search from ``start`` and return the best texts; of equally good ones the earliest."""
        searching = asyncio.create_task(asyncio.to_thread(self._optimize, start))
        try:
            await asyncio.shield(searching)
        except asyncio.CancelledError:
            self._adapter.cancel()
            await asyncio.wait({searching})
            raise
        failure = self._adapter.failure
        if failure is not None and not isinstance(failure, BudgetSpentError):
            raise failure
        scores = self._adapter.scores
        return max(scores, key=lambda each: each[1])[0] if scores else dict(start)

    def _optimize(self, start: Texts) -> None:
        try:
            optimize(
                seed_candidate=dict(start),
                trainset=self._tasks,
                adapter=self._adapter,  # type: ignore[arg-type]  # its protocol wants an attribute where a method is
                reflection_minibatch_size=self._settings.minibatch,
                perfect_score=self._settings.max_reward,
                stop_callbacks=[self],
                logger=_Log(),
                seed=self._settings.seed,
                track_best_outputs=False,
            )
        except BaseException as error:
            if self._adapter.failure is None:  # an error of GEPA's own
                self._adapter.failure = error

    def __call__(self, gepa_state: "GEPAState[Any, Any]") -> bool:
        """Return whether to stop before the next iteration: its cost exceeds the budget, or nothing is left to gain."""
        settings = self._settings
        best = max((score for _, score in self._adapter.scores), default=0.0)
        requested, limit = self._budget.num_requested, self._budget.limit
        self._on_progress(f"iteration {gepa_state.i + 1}: best {best:.3g}, {requested} of {limit} rollouts")
        return (
            self._adapter.failure is not None
            or best >= settings.max_reward
            or gepa_state.i + 1 >= settings.max_iterations
            or not self._budget.has_room(iteration_rollouts(settings, self._tasks), self._reserved)
        )

    async def _evaluate(self, texts: Texts, tasks: Sequence[TaskInput], with_traces: bool) -> list[list[RolloutResult]]:
        samples = self._settings.samples
        results = await self._evaluator.evaluate(self._budget, texts, tasks, samples, with_traces)
        if self._must_check_prompts:  # the first to be evaluated are the prompts in use
            await self._evaluator.check_prompts_used(self._settings.prompts, results)
            self._must_check_prompts = False
        return results


class _Log:
    """Adapter that passes GEPA's log lines to this module's logger."""

    def log(self, message: str) -> None:
        log.debug("gepa: %s", message)


def _means(results: Sequence[Sequence[RolloutResult]]) -> list[float]:
    return [sum(result.score for result in rollouts) / len(rollouts) for rollouts in results]
