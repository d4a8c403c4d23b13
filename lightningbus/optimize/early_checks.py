"""What must be right before anything is started for an optimisation: a mistake is not to cost a model's start."""

from lightningbus.bus.task_file import load_tasks
from lightningbus.optimize.reflection import ReflectingModel
from lightningbus.optimize.round_plan import check_settings
from lightningbus.run.optimize_settings import OptimizeSettings
from lightningbus.run.prompt_files import read_prompt_text


def check_before_start(settings: OptimizeSettings, run: str) -> None:
    """Raise `UserError` where prompts, problems, budget or the reflecting model's key are not as a round needs them.

    Raises `lightningbus.bus.task_file.TaskFileError` where problems cannot be read.
    """
    for name, prompt in settings.prompts.items():
        read_prompt_text(name, prompt)
    check_settings(settings, load_tasks(settings.tasks), load_tasks(settings.heldout), run)
    ReflectingModel(settings.reflection)
