"""The tasks of a group: the same for every learner of a run, before and after a restart."""

import re
from collections.abc import Sequence

from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.dispatch.task_order import TaskOrder
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_loading import TaskInput


class GroupTasks:
    """Makes the tasks of groups by their numbers."""

    def __init__(self, task_inputs: Sequence[TaskInput], settings: LearnerSettings) -> None:
        self._task_inputs, self._settings = task_inputs, settings
        self._task_order = TaskOrder(len(task_inputs), settings.seed)
        self._replacement = re.compile(rf".*@{re.escape(settings.run)}-p\d+r\d+", re.DOTALL)

    async def make(self, group: DispatchedGroup) -> list[Task]:
        """Build the tasks of a group, in the order of their samples."""
        pass_number, index = await self._task_order.seek(group.number)
        return tasks_of_group(self._task_inputs[index], pass_number, self._settings, group.replacement)

    def is_replacement(self, task: str) -> bool:
        """Return whether a task replaces that of a failed group, by the form of its id; see `task_id`."""
        return bool(self._task_inputs) and self._replacement.fullmatch(task) is not None


def task_id(task_input: TaskInput, pass_number: int, replacement: int, settings: LearnerSettings) -> str:
    """Build the id of an input's task in a pass."""
    again = f"r{replacement}" if replacement else ""
    return f"{task_input.id}@{settings.run}-p{pass_number}{again}"


def tasks_of_group(
    task_input: TaskInput, pass_number: int, settings: LearnerSettings, replacement: int = 0
) -> list[Task]:
    """Build the tasks of an input's group in a pass.

    Deterministic, so that a restarted learner publishes the same tasks under the same message ids.
    """
    return [
        Task(
            id=task_id(task_input, pass_number, replacement, settings),
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
        )
        for sample in range(settings.group_size)
    ]
