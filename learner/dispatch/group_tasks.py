"""The tasks of a group: the same for every learner of a run, before and after a restart."""

import re
from collections.abc import Sequence

from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.selection.selector import TaskSelector
from lightningbus.learner.selection.task_order import TaskOrder
from lightningbus.learner.selection.task_sets import TaskSets, find_set_reward
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_loading import TaskInput


class GroupTasks:
    """Makes the tasks of groups by their numbers, or by what a selector chose for them."""

    def __init__(self, task_inputs: Sequence[TaskInput], settings: LearnerSettings, selector: TaskSelector) -> None:
        self._task_inputs, self._settings, self._selector = task_inputs, settings, selector
        self.sets = sets = TaskSets(settings)
        self._members: list[list[TaskInput]] = [[] for _ in sets.names]
        for task_input in task_inputs:
            self._members[sets.find_index(task_input.id)].append(task_input)
        seeds = [f"{settings.seed}:{name}" if name else settings.seed for name in sets.names]
        self._orders = [TaskOrder(len(group), seed) for group, seed in zip(self._members, seeds, strict=True)]
        self._replacement = re.compile(rf".*@{re.escape(settings.run)}-[pg]\d+r\d+", re.DOTALL)

    async def make(self, group: DispatchedGroup) -> list[Task]:
        """Build the tasks of a group, in the order of their samples; raise `LearnerError` if its task is missing."""
        if group.selection is None:
            place, number = self.sets.turns.at(group.number)
            pass_number, index = await self._orders[place].seek(number)
            return self._build(self._members[place][index], f"p{pass_number}", group.replacement)
        task_input = self._selector.find_input(group.selection.task)
        if task_input is None:
            raise LearnerError(
                f"tasks: task {group.selection.task!r} is under way and is not among the tasks: bring it back, and "
                "keep task_selection.sampler until the run has ended"
            )
        return self._build(task_input, f"g{group.number}", group.replacement)

    def find_agent(self, number: int) -> str:
        """Return the name of the agent that runs a group, by its number."""
        return self.sets.of_turn(number).agent

    def find_group_size(self, task: str) -> int:
        """Return the number of rollouts of a task's group."""
        return self.sets.find_settings(task).group_size

    def _build(self, task_input: TaskInput, turn: str, replacement: int) -> list[Task]:
        return tasks_of_group(task_input, turn, self.sets.find_settings(task_input.id), replacement)

    def is_replacement(self, task: str) -> bool:
        """Return whether a task replaces that of a failed group, by the form of its id; see `task_id`."""
        return bool(self._task_inputs) and self._replacement.fullmatch(task) is not None


def task_id(task_input: TaskInput, turn: str, replacement: int, settings: LearnerSettings) -> str:
    """Build the id of an input's task in a turn: "p2" is pass 2, and "g17" group 17, whose task was selected."""
    again = f"r{replacement}" if replacement else ""
    return f"{task_input.id}@{settings.run}-{turn}{again}"


def find_input_id(task: str, run: str) -> str:
    """Return the id in the file of a published task; empty if the task is not of this run's learners."""
    input_id, _, turn = task.rpartition("@")
    return input_id if turn.startswith(f"{run}-") else ""


def tasks_of_group(task_input: TaskInput, turn: str, settings: LearnerSettings, replacement: int = 0) -> list[Task]:
    """Build the tasks of an input's group in a turn; see `task_id`.

    Deterministic, so that a restarted learner publishes the same tasks under the same message ids.
    """
    reward_name = None if settings.role_models else find_set_reward(settings, task_input.id)
    return [
        Task(
            id=task_id(task_input, turn, replacement, settings),
            run_id=settings.run,
            agent=settings.agent,
            input=task_input.input,
            labels=task_input.labels,
            sample_index=sample,
            group_size=settings.group_size,
            deadline=settings.rollout_timeout_seconds,
            max_attempts=settings.max_attempts,
            model=settings.main_model,
            role_models=settings.role_models,
            sampling_params=settings.sampling_params,
            reward_name=reward_name,
        )
        for sample in range(settings.group_size)
    ]
