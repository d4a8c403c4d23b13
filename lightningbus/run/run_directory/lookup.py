"""Finds a run by its name or directory."""

from pathlib import Path

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import PARTS, RUNS, SETTINGS, RunDirectory
from lightningbus.schemas.ids import LATEST

MIN_PARTS = 2
"""Parts by which a directory without settings on record is known as a run's; one alone may be somebody's own."""


def find_run(run: str | None, runs: Path = RUNS) -> RunDirectory | None:
    """Find a run by its name in ``runs`` or its directory, or the latest for None; None where there is no latest.

    A run that lies there alone is the latest, also without the link to it, which a copy lacks. Raises `UserError` if
    there is no run of that name.
    """
    if run is None:
        names = find_run_names(runs)
        return RunDirectory.latest(runs) or (RunDirectory(runs / names[0]) if len(names) == 1 else None)
    if (named := find_named_run(run, runs)) is not None:
        return named
    raise no_such_run(run, runs)


def no_such_run(run: str, runs: Path = RUNS) -> UserError:
    """Build the error for a name that no run has, with the nearest names in ``runs``."""
    names = find_run_names(runs)
    hint = suggest_name(run, names) if names else f"there is no run in {runs}"
    return UserError(f"there is no run {run!r}; {hint}".rstrip("; "))


def find_named_run(run: str, runs: Path = RUNS) -> RunDirectory | None:
    """Find a run by its name in ``runs`` or by its directory; None if there is none."""
    return next((RunDirectory(path) for path in (runs / run, Path(run)) if _is_run(path)), None)


def find_run_names(runs: Path = RUNS) -> list[str]:
    """List the names of the runs in a directory."""
    return [path.name for path in runs.glob("[!.]*") if path.name != LATEST and _is_run(path)]


def find_changeable_run(name: str, runs: Path = RUNS) -> RunDirectory:
    """Find a run that lies in ``runs`` by its name; ``latest`` names the one that was started last.

    Raises `UserError` for anything else, such as a path, a link, or a directory that is not a run's.
    """
    names = list_run_names(runs)
    if name == LATEST:
        latest = RunDirectory.latest(runs)
        if latest is None or latest.path.name not in names or latest.path.parent != runs.resolve():
            raise UserError(f"{runs / LATEST} leads to no run in {runs}")
        return RunDirectory(runs / latest.path.name)
    if name in names:
        return RunDirectory(runs / name)
    if name in _list_links(runs):
        raise UserError(f"{runs / name} is a link, not a run: it stays as it is")
    hint = suggest_name(name, names) if names else ""
    raise UserError(f"there is no run {name!r} in {runs}; {hint}".rstrip("; "))


def list_run_names(runs: Path = RUNS) -> list[str]:
    """List the names of the runs that lie in a directory; links and other directories are left out."""
    return [path.name for path in sorted(runs.glob("[!.]*")) if not path.is_symlink() and _has_parts(path)]


def find_missing_parts(path: Path) -> list[str]:
    """List the parts that a run's directory lacks, because somebody has deleted them; none of a whole one."""
    return [part for part in PARTS if not (path / part).is_dir()]


def _has_parts(path: Path) -> bool:
    """Return whether a directory is that of a run, though some of its parts may have been deleted."""
    try:
        if (path / SETTINGS).is_file() and _is_run(path):
            return True
        return len(find_missing_parts(path)) <= len(PARTS) - MIN_PARTS
    except PermissionError:  # it belongs to another user
        return False


def _list_links(runs: Path) -> list[str]:
    return [path.name for path in runs.glob("*") if path.is_symlink()]


def find_run_id(run: str) -> str:
    """Return a run's id in the store, by its name or directory."""
    named = find_named_run(run) if run else None
    return run if named is None else named.run_id


def _is_run(path: Path) -> bool:
    """Return whether a directory has the data of a run, or its versions alone: parts of it may have been deleted."""
    return (path / "store").is_dir() or (path / "bus").is_dir()
