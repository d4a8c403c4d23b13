"""Adapter between GEPA and the bus. GEPA runs in a thread; the event loop runs its evaluations as rollouts.

A restarted run replays GEPA from the beginning with the same seed. It reads earlier evaluations from the store and
earlier proposals from the bus, so GEPA itself keeps no state.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from typing import Any, TypeVar

from gepa.core.adapter import EvaluationBatch

from lightningbus.optimize.catalog import PromptCatalog
from lightningbus.optimize.feedback import Record, RolloutResult, build_records
from lightningbus.optimize.plan.candidates import Texts, proposal_key
from lightningbus.optimize.reflection import build_request, extract_prompt
from lightningbus.tasks.task_loading import TaskInput

log = logging.getLogger(__name__)
T = TypeVar("T")

Evaluate = Callable[[Texts, Sequence[TaskInput], bool], Awaitable[list[list[RolloutResult]]]]
"""Evaluates texts on tasks and returns the results of each task; True: with model calls and spans."""
Trajectory = list[RolloutResult]
"""The rollouts of one task."""


class BusAdapter:
    """A `gepa.GEPAAdapter`. Its first error ends the optimisation and is kept in `failure`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        evaluate: Evaluate,
        catalog: PromptCatalog,
        ask: Callable[[str], Awaitable[str]],
        num_tasks: int,
        max_chars: int,
        max_prompt_chars: int,
    ) -> None:
        """Keep the arguments. ``ask`` asks the reflecting model; ``num_tasks``: size of the set that selects
        candidates.
        """
        self._loop, self._evaluate, self._catalog, self._ask = loop, evaluate, catalog, ask
        self._num_tasks, self._max_chars, self._max_prompt_chars = num_tasks, max_chars, max_prompt_chars
        self._num_proposals = 0
        self._current: Future[Any] | None = None
        self.failure: BaseException | None = None
        self.scores: list[tuple[dict[str, str], float]] = []
        """Texts evaluated on all tasks, in order, with their mean reward."""

    def evaluate(
        self, batch: list[TaskInput], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Trajectory, Trajectory]:
        """Evaluate texts on tasks; a task's score is the mean reward of its rollouts."""
        results = self._run(self._evaluate(candidate, batch, capture_traces))
        scores = [sum(result.score for result in rollouts) / len(rollouts) for rollouts in results]
        if len(batch) == self._num_tasks and candidate not in [texts for texts, _ in self.scores]:
            self.scores.append((dict(candidate), sum(scores) / len(scores)))
        return EvaluationBatch(outputs=results, scores=scores, trajectories=results if capture_traces else None)

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Trajectory, Trajectory],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Record]]:
        """Return the examples for reflection by prompt, failures first."""
        rollouts = [result for results in eval_batch.trajectories or () for result in results]
        return {name: build_records(rollouts, name, self._max_chars) for name in components_to_update}

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Return a new text for each prompt to update, without those that did not change.

        A restarted run gets the texts that it proposed before at this point.
        """
        if self.failure is None:
            self._num_proposals += 1
        key = proposal_key(self._num_proposals, candidate, components_to_update)
        records = {name: [dict(record) for record in reflective_dataset[name]] for name in components_to_update}
        proposed = self._run(self._propose(candidate, records, key))
        return {name: text for name, text in proposed.items() if text != candidate[name]}

    def cancel(self) -> None:
        """Cancel the evaluation that GEPA's thread waits for; to be called in the event loop."""
        self.failure = self.failure or asyncio.CancelledError()
        if self._current is not None:
            self._current.cancel()

    async def _propose(self, texts: Texts, records: Mapping[str, Sequence[Record]], key: str) -> dict[str, str]:
        proposed = {}
        for name, examples in records.items():
            text = self._catalog.find_proposal(name, key)
            if text is None:
                text = extract_prompt(await self._ask(build_request(texts[name], examples)))
                if not text or len(text) > self._max_prompt_chars:
                    log.warning("prompt %s: a proposal of %d characters is not tried", name, len(text))
                    text = texts[name]  # kept as the answer, so that it is not asked for again
                await self._catalog.add_proposal(name, text, key, texts[name])
            proposed[name] = text
        return proposed

    def _run(self, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
        """Run ``work`` in the event loop and return its result; after the first error every call raises that error."""
        assert asyncio.iscoroutine(work)
        if self.failure is not None:
            work.close()
            raise self.failure
        self._current = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return self._current.result()  # type: ignore[no-any-return]
        except FutureCancelled as error:
            self.failure = self.failure or error
            raise
        except BaseException as error:
            self.failure = error
            raise
