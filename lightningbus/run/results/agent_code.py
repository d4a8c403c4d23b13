"""The code of a run's agents, rewards and own functions: a digest of each file, and a version of each package.

Nothing is imported: a file is found as Python would find it, and so is what it imports from its own directory.
"""

import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions, version
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.whole_file import write_whole
from lightningbus.runners.settings import RunnerSettings

RECORD = "code.json"
REFERENCE = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
"""A function of a module, as ``agent:solve``."""
ENVIRONMENT = "environment.json"
"""File in the working directory of an environment's agent: its adapter, name and arguments."""


def describe_code(runners: Iterable[RunnerSettings], learners: Iterable[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file, by its path, and the version of each installed package, by its name.

    ``learners`` are settings whose functions, as ``rewards:weigh``, are imported from the current directory. What
    cannot be read or found is left out: checks before a run refuse it. Blocks.
    """
    importlib.invalidate_caches()  # a file may be as new as the last look at its directory
    code: dict[str, str] = {}
    for runner in runners:
        root = runner.working_dir.resolve()
        modules = [each.partition(":")[0] for each in (runner.entrypoint, runner.reward_fn) if each]
        modules += _read_environment(root / ENVIRONMENT)
        places = [root, *_list_import_paths(runner, root)]
        code |= _describe_modules(modules, places, is_own_interpreter=runner.python_executable is None)
        files = [root / ENVIRONMENT, *(root / word for word in runner.command or ())]
        code |= _hash_files(path for path in files if path.is_file())
    for settings in learners:
        modules = [match[1] for text in _list_texts(settings) if (match := REFERENCE.fullmatch(text))]
        code |= _describe_modules(modules, [Path.cwd()], is_own_interpreter=True)
    return dict(sorted(code.items()))


def record_code(directory: Path, code: Mapping[str, str]) -> None:
    """Write the code of a job, as `describe_code` returns it, to the job's directory. Raises `UserError`."""
    try:
        write_whole(directory / RECORD, json.dumps(code, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{directory / RECORD} cannot be written: {error}") from error


def read_code(directory: Path) -> dict[str, str]:
    """Read the code that is on record; empty: nothing. Raises `UserError` where the file is damaged."""
    path = directory / RECORD
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it to go without it") from error


def list_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the files and packages that differ, in order. Pure."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _read_environment(path: Path) -> list[str]:
    """Return the name of an environment's module; none where there is no environment."""
    try:
        name = str(json.loads(path.read_bytes())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name.partition(":")[0].rpartition("/")[2].replace("-", "_")]


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _list_texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _list_texts(each)


def _list_import_paths(runner: RunnerSettings, root: Path) -> list[Path]:
    """Return the directories of the agent's ``PYTHONPATH``."""
    variables = dict(entry.split("=", 1) for entry in runner.env if "=" in entry)
    return [root / path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]


def _describe_modules(modules: Iterable[str], places: Sequence[Path], *, is_own_interpreter: bool) -> dict[str, str]:
    """Describe modules, and what they import from the directories ``places``."""
    finder = ModuleFinder(path=[str(place) for place in places])
    code: dict[str, str] = {}
    for name in modules:
        package = name.partition(".")[0]
        spec = PathFinder.find_spec(package, finder.path)
        if spec is None and is_own_interpreter:
            code |= _describe_installed(package)
        elif spec is not None:
            try:
                finder.import_hook(name)
            except (ImportError, SyntaxError, ValueError, OSError):
                code |= _hash_files([Path(spec.origin)] if spec.origin else [])
    paths = (getattr(module, "__file__", None) for module in finder.modules.values())
    files = {Path(path) for path in paths if path}
    packages = {file.parent for file in files if file.name == "__init__.py"}
    return code | _hash_files(files.union(*(package.rglob("*.py") for package in packages)))


@cache
def _list_distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _describe_installed(package: str) -> dict[str, str]:
    """Return the version of an installed package; of one that is installed from a checkout, its files."""
    spec = PathFinder.find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    file = Path(spec.origin)
    if "site-packages" in file.parts or "dist-packages" in file.parts:
        return {name: version(name) for name in _list_distributions().get(package, [])}
    return _hash_files(file.parent.rglob("*.py") if file.name == "__init__.py" else [file])


def _hash_files(files: Iterable[Path]) -> dict[str, str]:
    digests = {}
    for file in files:
        try:
            digests[_name(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError:
            continue
    return digests


def _name(file: Path) -> str:
    """Return a path as it is from the current directory, so that a moved project has the same names."""
    path = file.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
