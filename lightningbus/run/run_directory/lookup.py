"""A run found by what a user calls it."""

from pathlib import Path

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import LATEST, RUNS, RunDirectory


def find_run(run: str | None, runs: Path = RUNS) -> RunDirectory | None:
    """The run of a name in ``runs``, or of a directory, None for the latest; None where no run is named and none is.

    Raises `UserError` where one is named that is not there.
    """
    if run is None:
        return RunDirectory.latest(runs)
    if (named := find_named_run(run, runs)) is not None:
        return named
    names = find_run_names(runs)
    hint = suggest_name(run, names) if names else f"there is no run in {runs}"
    raise UserError(f"there is no run {run!r}; {hint}".rstrip("; "))


def find_named_run(run: str, runs: Path = RUNS) -> RunDirectory | None:
    """The run of a name in ``runs``, or of a directory; None: there is none."""
    return next((RunDirectory(path) for path in (runs / run, Path(run)) if _is_run(path)), None)


def find_run_names(runs: Path = RUNS) -> list[str]:
    """The names of the directories of runs."""
    return [path.name for path in runs.glob("*") if path.name != LATEST and _is_run(path)]


def find_run_id(run: str) -> str:
    """The name that the rows of a run have, of its name or its directory."""
    named = find_named_run(run) if run else None
    return run if named is None else named.run_id


def _is_run(path: Path) -> bool:
    return (path / "store").is_dir()
