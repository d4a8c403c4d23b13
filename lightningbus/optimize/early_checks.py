"""What must be right before anything is started for an optimisation: a mistake is not to cost a model's start."""

from lightningbus.optimize.plan.round_plan import check_settings
from lightningbus.optimize.reflection import ReflectingModel
from lightningbus.run.results.prompt_files import read_prompt_text
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.tasks.task_file import load_tasks


def check_before_start(settings: OptimizeSettings, run: str) -> None:
    """Raise `UserError` where prompts, problems, budget or the reflecting model's key are not as a round needs them.

    Raises `lightningbus.tasks.errors.TaskFileError` where problems cannot be read.
    """
    for name, prompt in settings.prompts.items():
        read_prompt_text(name, prompt)
    check_settings(settings, load_tasks(settings.tasks), load_tasks(settings.heldout), run)
    ReflectingModel(settings.reflection)
