"""The task of the next group, by a sampler: a built-in one, or a function of the user's."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from lightningbus.learner.errors import as_learner_error
from lightningbus.learner.selection.difficulty import Selection, TaskResults, add_results, estimate_openness
from lightningbus.learner.selection.sampler import WeightedTurns
from lightningbus.learner.selection.task_order import shuffle
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.learner.settings.algorithm import DIFFICULTY
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.own_function import OwnFunction, OwnFunctionError
from lightningbus.tasks.task_loading import TaskInput

NO_RESULTS = TaskResults()


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """One task as a sampler of the user's sees it.

    Fields:
        id: id of the task in its file
        labels: labels of the task, by name
        passed: number of its rollouts that passed, older ones counting less
        failed: number of its rollouts that did not pass, older ones counting less
        group_size: number of rollouts of each of its groups
        num_groups_since: groups dispatched since its last one; for a task that had none, since one pass before the
            start
    """

    id: str
    labels: Mapping[str, str]
    passed: float
    failed: float
    group_size: int
    num_groups_since: int


class TaskSelector:
    """Selects tasks by their results. With the sampler `uniform` there is nothing to select.

    Raises ValueError for a function that cannot be imported.
    """

    def __init__(self, task_inputs: Sequence[TaskInput], settings: LearnerSettings) -> None:
        self._rules = settings.task_selection
        self._results: dict[str, TaskResults] = {}
        self.is_active = self._rules.selects and bool(task_inputs)
        """Whether tasks are selected by their results, rather than once a pass."""
        if not self.is_active:
            return
        self._function = None
        if self._rules.sampler != DIFFICULTY:
            self._function = OwnFunction.load("task_selection.sampler", self._rules.sampler)
        self._inputs, self._sets = list(task_inputs), TaskSets(settings)
        places = np.array([self._sets.find_index(task_input.id) for task_input in self._inputs])
        self._is_member = [places == place for place in range(len(self._sets.names))]
        self._index = {task_input.id: index for index, task_input in enumerate(self._inputs)}
        self._turns = WeightedTurns(shuffle(len(self._inputs), settings.seed, 0), settings.seed)
        self._weights: NDArray[np.float64] = np.full(len(self._inputs), _weigh(NO_RESULTS))

    def restore(self, results: Mapping[str, TaskResults]) -> None:
        """Restore the results of a checkpoint, and the turns since; tasks that are no longer there are forgotten."""
        if self.is_active:
            for task, task_results in results.items():
                if task in self._index:
                    self._keep(task, task_results)
                    self._turns.note(self._index[task], task_results.selected_at)

    def snapshot(self) -> dict[str, TaskResults]:
        """Return the results by task for a checkpoint; a task without any is left out."""
        return dict(self._results)

    def find_input(self, task: str) -> TaskInput | None:
        """Return a task by its id in the file."""
        return self._inputs[self._index[task]] if self.is_active and task in self._index else None

    def add(self, task: str, rewards: Iterable[float]) -> None:
        """Add the rewards of a group to the results of a task, by its id in the file."""
        if self.is_active and task in self._index:
            before = self._results.get(task, NO_RESULTS)
            self._keep(task, add_results(before, rewards, self._rules.pass_reward, self._rules.memory))

    async def select(self, number: int) -> Selection | None:
        """Select the task of group ``number``; None: it follows from the number. Raises `LearnerError`."""
        if not self.is_active:
            return None
        if self._function is not None:
            try:
                self._weights = await asyncio.to_thread(self._ask, self._function, number)
            except OwnFunctionError as error:
                raise as_learner_error(error) from error
        weights = np.where(self._is_member[self._sets.turns.at(number)[0]], self._weights, 0.0)
        index = self._turns.next(weights, number)
        self._turns.note(index, number)
        task = self._inputs[index].id
        before = self._results.get(task, NO_RESULTS)
        self._results[task] = replace(before, selected_at=number)
        weight = float(weights[index])
        return Selection(
            task=task,
            passed=before.passed,
            failed=before.failed,
            weight=weight,
            share=weight / float(weights.sum()),
            decided_at_ns=time.time_ns(),
        )

    def _keep(self, task: str, results: TaskResults) -> None:
        self._results[task] = results
        self._weights[self._index[task]] = _weigh(results)

    def _ask(self, function: OwnFunction, number: int) -> NDArray[np.float64]:
        """Ask the user's function for the weights of all tasks; raise `OwnFunctionError`."""
        waited = self._turns.waited(number).tolist()
        tasks = []
        for task_input, since in zip(self._inputs, waited, strict=True):
            results = self._results.get(task_input.id, NO_RESULTS)
            tasks.append(
                TaskStatistics(
                    id=task_input.id,
                    labels=task_input.labels,
                    passed=results.passed,
                    failed=results.failed,
                    group_size=self._sets.find_settings(task_input.id).group_size,
                    num_groups_since=since,
                )
            )
        weights = np.array(function.read_numbers(function(tasks), len(tasks), "tasks"))
        if weights.min() < 0 or not all(weights[is_member].any() for is_member in self._is_member):
            raise function.refuse_result("returned a negative weight, or none above 0")
        return weights


def _weigh(results: TaskResults) -> float:
    return estimate_openness(results.passed, results.failed)
