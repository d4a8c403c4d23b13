"""Files that name a run: records of runs, and run files of a project."""

import re
from collections.abc import Iterator
from pathlib import Path

from lightningbus.run.run_directory.lookup import list_run_names

RECORDS = ("job.json", "work/*.json")
PROJECT_FILES = ("*.yaml", "*.yml")
MAX_BYTES = 1 << 20
"""Larger files are no settings."""


def names_run(text: str, name: str, runs: str) -> bool:
    """Return whether settings name a run: by a path below ``runs``, or as ``name`` or ``run``. Pure."""
    after = r"(?![\w-])"
    path = rf"(?<![\w-]){re.escape(runs)}/{re.escape(name)}{after}"
    field = rf"""\b(?:name|run)["']?\s*:\s*["']?{re.escape(name)}{after}"""
    return re.search(f"{path}|{field}", text) is not None


def find_references(name: str, runs: Path, project: Path) -> list[Path]:
    """List the files that name a run: records of the runs in ``runs``, and YAML files in ``project``.

    Files that cannot be read are left out.
    """
    return [path for path in _list_settings(runs, project) if names_run(_read(path), name, runs.resolve().name)]


def _list_settings(runs: Path, project: Path) -> Iterator[Path]:
    for run in list_run_names(runs):
        for pattern in RECORDS:
            yield from sorted((runs / run).glob(pattern))
    for pattern in PROJECT_FILES:
        yield from sorted(project.glob(pattern))


def _read(path: Path) -> str:
    try:
        return path.read_text() if path.stat().st_size <= MAX_BYTES else ""
    except (OSError, ValueError):
        return ""
