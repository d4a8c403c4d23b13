"""The settings that a run was started with last, in its directory: a resume by name alone takes them from there."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RUNS, SETTINGS, RunDirectory
from lightningbus.run.run_directory.lookup import find_run
from lightningbus.run.run_directory.whole_file import write_whole
from lightningbus.run.settings.hub_models import find_cached_models
from lightningbus.run.settings.run_file import RunSettings, load_fields, validate_settings, with_environment
from lightningbus.run.settings.sources import merge


def record_settings(run: RunDirectory, settings: RunSettings) -> None:
    """Write the settings of a start, whole or not at all; raises `UserError` where they cannot be written."""
    text = settings.model_dump_json(exclude_unset=True, indent=2)
    write_whole(run.path / SETTINGS, text, mode=0o600)  # it may hold addresses with passwords


def has_recorded_settings(run: RunDirectory) -> bool:
    """Return whether a run has its settings on record; one of an earlier release has not."""
    return (run.path / SETTINGS).exists()


def read_recorded_settings(run: RunDirectory) -> dict[str, Any]:
    """Read the settings on record as fields of a run file, with the run's name and the directory it lies in.

    Raises `UserError` where there are none, where they cannot be read, and for a run whose data has another name.
    """
    path = run.path / SETTINGS
    if not path.exists():
        raise UserError(f"{run.path} has no settings on record ({SETTINGS}): give its run file by -c or settings=")
    try:
        fields = json.loads(path.read_bytes())
        name = fields.get("name", RunSettings.model_fields["name"].default)
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): give the run file by -c or settings=") from error
    if name != run.path.name:
        raise UserError(
            f"{run.path} holds the run {name!r}, which was moved aside or renamed: to go on with it, name it {name!r} "
            "again by `lightningbus runs rename`"
        )
    return {**fields, "runs": str(run.path.parent)}


def drop_replaced_budget(recorded: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings on record without their budget if ``fields`` has one: its limits are not merged. Pure."""
    return {name: value for name, value in recorded.items() if name != "budget" or name not in fields}


def load_named_run(name: str, config: Path | None, runs: Path = RUNS) -> RunSettings:
    """Load the settings of a run by its name or directory: those on record, then a run file's, then the environment.

    A later one of them wins. Raises `UserError`.
    """
    run = find_run(name, runs)
    assert run is not None, "it has a name"
    run = RunDirectory(Path(os.path.normpath(run.path)))
    recorded = read_recorded_settings(run)
    kept = {"name": run.path.name, "runs": recorded["runs"]}
    changes = load_fields(config) if config is not None else {}
    fields = {**merge(drop_replaced_budget(recorded, changes), changes), **kept}
    settings = validate_settings(RunSettings, with_environment(fields), str(config or run.path / SETTINGS))
    return find_cached_models(settings)
