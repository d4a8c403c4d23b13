"""The code of a run's agents, rewards and own functions: a digest of each file, and a version of each package.

Nothing is imported: a file is found as Python would find it, and so is what it imports from its own directory.
"""

import ast
import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions, version
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.whole_file import write_whole
from lightningbus.runners.settings import RunnerSettings

RECORD = "code.json"
REFERENCE = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
"""A function of a module, as ``agent:solve``."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Names of directories with installed packages."""
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
    """Return the directories of the agent's ``PYTHONPATH`` that hold no installed packages."""
    variables = dict(entry.split("=", 1) for entry in runner.env if "=" in entry)
    paths = [root / path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    return [path for path in paths if not _holds_installed(path)]


def _holds_installed(path: Path) -> bool:
    return not INSTALLED.isdisjoint(path.parts)


def _describe_modules(modules: Iterable[str], places: Sequence[Path], *, is_own_interpreter: bool) -> dict[str, str]:
    """Describe modules, and what they import from the directories ``places``."""
    code: dict[str, str] = {}
    paths = [str(place) for place in places]
    files = _find_files(modules, paths)
    for package in {name.partition(".")[0] for name in modules}:
        if is_own_interpreter and PathFinder.find_spec(package, paths) is None:
            code |= _describe_installed(package)
    packages = {file.parent for file in files if file.name == "__init__.py"}
    return code | _hash_files(files.union(*(package.rglob("*.py") for package in packages)))


def _find_files(modules: Iterable[str], paths: Sequence[str]) -> set[Path]:
    """Find the files of modules, and of all modules below ``paths`` that they import anywhere in their code."""
    files: dict[str, Path] = {}
    waiting, visited = list(modules), set[str]()
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        for module, spec in _find_specs(name, paths):
            if spec.origin is not None and module not in files:
                files[module] = file = Path(spec.origin)
                is_package = spec.submodule_search_locations is not None
                waiting += _list_imports(file, module if is_package else module.rpartition(".")[0])
    return set(files.values())


def _find_specs(name: str, paths: Sequence[str]) -> Iterator[tuple[str, ModuleSpec]]:
    """Find the packages around a module and the module, as far as they are there, each with its full name."""
    parts, places = name.split("."), list(paths)
    for number, part in enumerate(parts, start=1):
        spec = PathFinder.find_spec(part, places)  # a full name would look for packages among imported modules
        if spec is None:
            return
        yield ".".join(parts[:number]), spec
        places = list(spec.submodule_search_locations or ())


def _list_imports(file: Path, package: str) -> list[str]:
    """List the names of modules that a file of a package may import; none where it is no Python."""
    names: list[str] = []
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # beyond the topmost package
                base = resolve_name("." * node.level + (node.module or ""), package)
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


@cache
def _list_distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _describe_installed(package: str) -> dict[str, str]:
    """Return the version of an installed package; of one that is installed from a checkout, its files."""
    spec = PathFinder.find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    file = Path(spec.origin)
    if _holds_installed(file):
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
