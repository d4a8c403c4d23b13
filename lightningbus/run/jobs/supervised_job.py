"""A training on a file from start to end: a bus, a store and a learner that learns from what the file holds."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from lightningbus.run.errors import UserError
from lightningbus.run.processes.stack import run_roles, start_stack
from lightningbus.run.results.base_files import record_base_models
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.run.settings.supervised import DataPart, data_settings

DATA, RECORD = "demonstrations", "supervised.json"
KINDS: dict[DataPart, str] = {"supervised": "supervised training", "preferences": "training on pairs"}


async def run(settings: RunSettings, *, resume: bool = False) -> RunDirectory:
    """Train to the last step; an earlier run of this name is moved aside, or resumed.

    The file is copied into the run's directory, with the settings. Raises `UserError` when a part fails for good.
    """
    directory = RunDirectory(settings.runs / settings.name)
    title = f"lightningbus {'sft' if _part_of(settings) == 'supervised' else 'dpo'} · {settings.name}"
    with directory.reserved(), directory.opened(fresh=not resume):
        if not resume:
            settings = _record(directory, settings)
            record_base_models(directory.path, settings.all_learners)
        async with (
            start_stack(directory, settings.bus, title, settings.policies) as stack,
            stack.trackers(settings, settings.all_learners),
        ):
            await run_roles(stack, settings, asyncio.Event())
    return directory


def read_record(directory: Path, part: DataPart = "supervised") -> RunSettings:
    """Read the settings with which a training of this kind was started; raise `UserError` if there was none.

    Their ``runs`` is the directory that holds this one, also where it was named from another place.
    """
    path = directory / RECORD
    missing = UserError(f"{directory} holds no {KINDS[part]} to resume: start it without --resume")
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        raise missing from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): start the training without --resume") from error
    settings = validate_settings(RunSettings, fields, str(path))
    if _part_of(settings) != part:
        raise missing
    return settings.model_copy(update={"runs": directory.parent})


def _part_of(settings: RunSettings) -> DataPart:
    return "preferences" if settings.learner is not None and settings.learner.preferences is not None else "supervised"


def _record(directory: RunDirectory, settings: RunSettings) -> RunSettings:
    """Copy the file into the directory and write the settings that name the copy; return these."""
    learner = settings.learner
    assert learner is not None
    data = data_settings(learner)
    name = DATA if data is learner.supervised else "pairs"
    copy = (directory.path / name).with_suffix(data.path.suffix).resolve()
    shutil.copyfile(data.path, copy)
    changes: dict[str, Any] = {_part_of(settings): data.model_copy(update={"path": copy})}
    settings = settings.model_copy(update={"learner": learner.model_copy(update=changes)})
    record = directory.path / RECORD
    record.touch(mode=0o600)  # settings may hold addresses with passwords
    record.write_text(settings.model_dump_json(exclude_unset=True))
    return settings
