"""Cost and limits of a round, and the settings that determine its course. Pure."""

from collections.abc import Sequence

from lightningbus.optimize.plan.budget import BudgetSpentError
from lightningbus.optimize.plan.candidates import KEY_CHARS, run_key
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.publishing import MAX_ROLLOUT_CHARACTERS
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.tasks.task_loading import TaskInput

LIMITS = ("budget", "round_budget", "every", "max_iterations", "deadline", "tasks", "heldout", "prompts")
"""Settings left out of the comparison at a restart: limits may change; tasks and prompts are compared by content."""
ID_CHARACTERS = KEY_CHARS + 12
"""Characters of a rollout's id beside the ids of task and run."""
CHANGEABLE = {"max_chars", "timeout", "api_key_env", "url"}
"""Settings of the reflection that may change at a restart."""


def iteration_rollouts(settings: OptimizeSettings, tasks: Sequence[TaskInput]) -> int:
    """Return the most rollouts of one iteration: a minibatch under parent and child, and all tasks under the child."""
    return (2 * min(settings.minibatch, len(tasks)) + len(tasks)) * settings.samples


def heldout_rollouts(settings: OptimizeSettings, heldout: Sequence[TaskInput]) -> int:
    """Return the number of rollouts of the held-out comparison at the end."""
    return 2 * len(heldout) * settings.heldout_samples


def check_settings(
    settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput], run: str = ""
) -> None:
    """Raise `UserError` where a task is in both sets, an id is too long, or the budget is below one iteration."""
    longest = max((task.id for task in (*tasks, *heldout)), key=len)
    if (excess := len(longest) + len(run) + ID_CHARACTERS - MAX_ROLLOUT_CHARACTERS) > 0:
        raise UserError(f"id {longest!r} with the name of the run is {excess} characters too long")
    if both := {task.id for task in tasks} & {task.id for task in heldout}:
        raise UserError(f"optimize.heldout: task {min(both)!r} is in optimize.tasks too; ids must differ")
    needed = round_rollouts(settings, tasks, heldout)
    for setting, limit in (("budget", settings.budget), ("round_budget", settings.round_budget)):
        if limit is not None and limit < needed:
            raise UserError(
                f"optimize.{setting}: {limit} rollouts are too few: {len(tasks)} tasks, one proposal and twice "
                f"the held-out tasks need {needed}"
            )


def round_rollouts(settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput]) -> int:
    """Return the most rollouts of a round with one proposal."""
    return len(tasks) * settings.samples + iteration_rollouts(settings, tasks) + heldout_rollouts(settings, heldout)


def find_limit(
    settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput], num_by_others: int
) -> int:
    """Return the most rollouts that this round may publish, after ``num_by_others`` of the run's other rounds.

    Raises `BudgetSpentError` where they do not suffice for one proposal.
    """
    left = settings.budget - num_by_others
    limit = left if settings.round_budget is None else min(settings.round_budget, left)
    needed = round_rollouts(settings, tasks, heldout)
    if limit < needed:
        raise BudgetSpentError(
            f"of optimize.budget {max(left, 0)} rollouts are left: a round with one proposal needs {needed}"
        )
    return limit


def describe_course(settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput]) -> str:
    """Return a key of all settings and tasks that determine a round's course; limits are left out."""
    fields = settings.model_dump(
        mode="json",
        exclude={**dict.fromkeys(LIMITS, True), "reflection": CHANGEABLE},
    )
    contents = [[[task.id, task.input] for task in each] for each in (tasks, heldout)]
    return run_key({"settings": fields, "tasks": contents})
