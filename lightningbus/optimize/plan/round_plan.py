"""What a round costs, what it may spend, and which settings decide its course. Pure."""

from collections.abc import Sequence

from lightningbus.optimize.plan.budget import BudgetSpentError
from lightningbus.optimize.plan.candidates import KEY_CHARS, run_key
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.publishing import MAX_ROLLOUT_CHARACTERS
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.tasks.task_file import TaskInput

LIMITS = ("budget", "round_budget", "every", "max_iterations", "deadline", "tasks", "heldout", "prompts")
"""Settings that a run may change when it goes on, and those that are compared by what they hold."""
ID_CHARACTERS = KEY_CHARS + 12
"""Of a rollout's id beside those of problem and run."""
CHANGEABLE = {"max_chars", "timeout", "api_key_env", "url"}
"""Settings of the reflection that a run may change when it goes on."""


def iteration_rollouts(settings: OptimizeSettings, tasks: Sequence[TaskInput]) -> int:
    """Most rollouts of one iteration: a minibatch under parent and child, and all problems under the child."""
    return (2 * min(settings.minibatch, len(tasks)) + len(tasks)) * settings.samples


def heldout_rollouts(settings: OptimizeSettings, heldout: Sequence[TaskInput]) -> int:
    """Rollouts of the comparison at the end."""
    return 2 * len(heldout) * settings.heldout_samples


def check_settings(
    settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput], run: str = ""
) -> None:
    """Raise `UserError` where problems are in both sets, or the budget does not suffice for one iteration."""
    longest = max((task.id for task in (*tasks, *heldout)), key=len)
    if (excess := len(longest) + len(run) + ID_CHARACTERS - MAX_ROLLOUT_CHARACTERS) > 0:
        raise UserError(f"id {longest!r} with the name of the run is {excess} characters too long")
    if both := {task.id for task in tasks} & {task.id for task in heldout}:
        raise UserError(f"optimize.heldout: problem {min(both)!r} is in optimize.tasks too; ids must differ")
    needed = round_rollouts(settings, tasks, heldout)
    for setting, limit in (("budget", settings.budget), ("round_budget", settings.round_budget)):
        if limit is not None and limit < needed:
            raise UserError(
                f"optimize.{setting}: {limit} rollouts are too few: {len(tasks)} problems, one proposal and twice "
                f"the held-out problems need {needed}"
            )


def round_rollouts(settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput]) -> int:
    """Rollouts of a round with one proposal, at most."""
    return len(tasks) * settings.samples + iteration_rollouts(settings, tasks) + heldout_rollouts(settings, heldout)


def find_limit(
    settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput], num_by_others: int
) -> int:
    """Most rollouts of a round, where the run's other rounds have published so many; raises `BudgetSpentError`."""
    left = settings.budget - num_by_others
    limit = left if settings.round_budget is None else min(settings.round_budget, left)
    needed = round_rollouts(settings, tasks, heldout)
    if limit < needed:
        raise BudgetSpentError(
            f"of optimize.budget {max(left, 0)} rollouts are left: a round with one proposal needs {needed}"
        )
    return limit


def describe_course(settings: OptimizeSettings, tasks: Sequence[TaskInput], heldout: Sequence[TaskInput]) -> str:
    """A key of all that decides what a round does under given weights; limits may be raised when it goes on."""
    fields = settings.model_dump(
        mode="json",
        exclude={**dict.fromkeys(LIMITS, True), "reflection": CHANGEABLE},
    )
    problems = [[[task.id, task.input] for task in each] for each in (tasks, heldout)]
    return run_key({"settings": fields, "problems": problems})
