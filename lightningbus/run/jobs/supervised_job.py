"""A supervised training from start to end: a bus, a store and a learner that imitates what a file holds."""

import asyncio
import json
import shutil
from pathlib import Path

from lightningbus.run.errors import UserError
from lightningbus.run.processes.stack import run_roles, start_stack
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import RunSettings, validate_settings

DEMONSTRATIONS, RECORD = "demonstrations", "supervised.json"


async def run(settings: RunSettings, *, resume: bool = False) -> RunDirectory:
    """Train to the last step; an earlier run of this name is moved aside, or resumed.

    The file of demonstrations is copied into the run's directory, with the settings. Raises `UserError` when a part
    fails for good.
    """
    directory = RunDirectory(settings.runs / settings.name)
    title = f"lightningbus sft · {settings.name}"
    with directory.reserved(), directory.opened(fresh=not resume):
        if not resume:
            settings = _record(directory, settings)
        async with (
            start_stack(directory, settings.bus, title, settings.policies) as stack,
            stack.trackers(settings, settings.all_learners),
        ):
            await run_roles(stack, settings, asyncio.Event())
    return directory


def read_record(directory: Path) -> RunSettings:
    """Read the settings with which a supervised training was started; raise `UserError` if there was none."""
    path = directory / RECORD
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{directory} holds no supervised training to resume: start it without --resume") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): start the training without --resume") from error
    return validate_settings(RunSettings, fields, str(path))


def _record(directory: RunDirectory, settings: RunSettings) -> RunSettings:
    """Copy the demonstrations into the directory and write the settings that name the copy; return these."""
    learner = settings.learner
    assert learner is not None and learner.supervised is not None
    copy = (directory.path / DEMONSTRATIONS).with_suffix(learner.supervised.path.suffix).resolve()
    shutil.copyfile(learner.supervised.path, copy)
    supervised = learner.supervised.model_copy(update={"path": copy})
    settings = settings.model_copy(update={"learner": learner.model_copy(update={"supervised": supervised})})
    record = directory.path / RECORD
    record.touch(mode=0o600)  # settings may hold addresses with passwords
    record.write_text(settings.model_dump_json(exclude_unset=True))
    return settings
