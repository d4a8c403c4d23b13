"""Checks of an optimisation's settings before any process is started."""

from lightningbus.optimize.plan.round_plan import check_settings
from lightningbus.optimize.reflection import ReflectingModel
from lightningbus.run.results.prompt_files import read_prompt_text
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.tasks.task_loading import load_tasks


def check_before_start(settings: OptimizeSettings, run: str) -> None:
    """Raise `UserError` where prompts, tasks, budget or the reflecting model's key do not suffice for a round.

    Raises `lightningbus.tasks.errors.TaskFileError` where tasks cannot be read.
    """
    for name, prompt in settings.prompts.items():
        read_prompt_text(name, prompt)
    check_settings(settings, load_tasks(settings.tasks), load_tasks(settings.heldout), run)
    ReflectingModel(settings.reflection)
