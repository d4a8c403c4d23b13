"""Models of a run: the choice where none is named, and the settings of their learners."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.weights.registry import list_models
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RUNS
from lightningbus.run.run_directory.lookup import find_named_run
from lightningbus.schemas.subjects import DEFAULT_POLICY


def choose_model(named: str | None, models: Sequence[str], option: str = "--model") -> str:
    """Return the model that is named, else the only one there is; raises `UserError` where there are several. Pure."""
    if named is not None:
        return named
    if len(models) > 1:
        raise UserError(f"{option}: there are several models, name one of {', '.join(models)}")
    return models[0] if models else DEFAULT_POLICY


async def choose_model_on_bus(named: str | None, bus: Bus) -> str:
    """Choose among the models that have versions on a bus, see `choose_model`."""
    return named if named is not None else choose_model(named, await list_models(bus))


def read_known_learners(run: str, runs: Path = RUNS) -> dict[str, dict[str, Any]]:
    """Read the settings of the learners of a run, by model; empty where they are not on record or damaged."""
    directory = find_named_run(run, runs)
    try:
        return directory.read_learners() if directory is not None else {}
    except BusError:  # its store may be whole
        return {}
