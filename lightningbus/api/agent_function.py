"""An agent as settings of a runner: ``module:function``, or a function, which is sent to a process of its own."""

import hashlib
import inspect
import keyword
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lightningbus.api.tasks import input_directory
from lightningbus.api.user_errors import require_package
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import validate_settings
from lightningbus.run.settings.sources import merge, to_fields
from lightningbus.runners.settings import RunnerSettings

SHARED = ("endpoints", "model_aliases", "graded")
"""Settings that another agent of a run has too: of its models and its grader, not of the agent."""
MODULE = "notebook_agent"
"""Name of the module that loads a function in the agent's process."""
SOURCE = '''\
"""Loads the function {name!r} that a notebook passed to lightningbus; written by it."""

import os
import pickle
import sys
from pathlib import Path

content = Path(__file__).with_suffix(".pickle").read_bytes()
os.chdir({directory!r})
sys.path.insert(0, {directory!r})
{variable} = pickle.loads(content)
'''


def runner_fields(agent: str | Callable[..., Any], runs: Path) -> dict[str, Any]:
    """Return ``entrypoint`` and ``working_dir`` of a runner; raises `UserError` where the agent cannot run elsewhere.

    ``module:function`` is looked for in the current directory. A function of a module is imported by its name. One of
    a notebook or script is pickled by value into a directory below ``runs``, with the functions and constants it uses.
    """
    if isinstance(agent, str):
        return {"entrypoint": agent, "working_dir": str(Path.cwd())}
    if not callable(agent):
        raise UserError(f"agent: give 'module:function' or a function, not a {type(agent).__name__}")
    module = sys.modules.get(getattr(agent, "__module__", None) or "")
    if module is not None and is_importable(agent, module):
        return {"entrypoint": f"{module.__name__}:{agent.__qualname__}", "working_dir": str(import_root(module))}
    return {"entrypoint": f"{MODULE}:{_name_variable(agent)}", "working_dir": str(save_function(agent, runs))}


def parse_runner(
    agent: str | Callable[..., Any],
    runs: Path,
    settings: RunnerSettings | Mapping[str, Any],
    recorded: Mapping[str, Any] | None = None,
) -> RunnerSettings:
    """Return a runner's settings for an agent; raises `UserError` for a wrong setting, or as `runner_fields`.

    ``recorded`` are those of a runner of the run that it joins: who answers model calls, and who gives rewards, is the
    same unless ``settings`` say otherwise.
    """
    wanted = to_fields(settings)
    shared = _select_shared(recorded or {}, wanted.get("endpoints"))
    fields = {**runner_fields(agent, runs), **merge(shared, wanted)}
    return validate_settings(RunnerSettings, fields, "runner")


def _select_shared(recorded: Mapping[str, Any], endpoints: Any) -> dict[str, Any]:
    """Select what another agent of a run has too; no endpoint of another address gets the run's key. Pure."""
    shared = {name: recorded[name] for name in SHARED if recorded.get(name)}
    if "endpoints" in shared and isinstance(endpoints, Mapping):
        elsewhere = [name for name, each in endpoints.items() if isinstance(each, Mapping) and "url" in each]
        shared["endpoints"] = {name: each for name, each in shared["endpoints"].items() if name not in elsewhere}
    return shared


def is_importable(function: Callable[..., Any], module: ModuleType) -> bool:
    """Return whether another process finds the function by its module and name."""
    name = getattr(function, "__qualname__", "")
    return (
        module.__name__ != "__main__"
        and getattr(module, "__file__", None) is not None
        and getattr(module, name, None) is function
    )


def import_root(module: ModuleType) -> Path:
    """Return the directory from which a module is imported."""
    assert module.__file__ is not None
    file = Path(module.__file__).resolve()
    levels = module.__name__.count(".") + (file.name == "__init__.py")
    return file.parents[levels]


def save_function(function: Callable[..., Any], runs: Path) -> Path:
    """Pickle a function by value, and return the directory of a module that loads it."""
    require_package("cloudpickle", "notebook")
    import cloudpickle

    name = _name_function(function)
    try:
        content = cloudpickle.dumps(function)
    except Exception as error:  # what an object's own pickling raises
        raise UserError(
            f"agent: {name} cannot be sent to a process of its own, because of {find_unsendable(function)} "
            f"({_first_line(error)}): create that inside {name}, or give 'module:function' of a file"
        ) from error
    source = SOURCE.format(name=name, variable=_name_variable(function), directory=str(Path.cwd()))
    directory = input_directory(runs) / f"agent-{hashlib.sha256(source.encode() + content).hexdigest()[:16]}"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / f"{MODULE}.pickle").write_bytes(content)
    (directory / f"{MODULE}.py").write_text(source)
    return directory


def _name_function(function: Any) -> str:
    """Return the name of a function, or of an object's class."""
    return str(getattr(function, "__name__", type(function).__name__))


def _name_variable(function: Any) -> str:
    """Return the name by which the module of a function has it: its own, if that can be a name."""
    name = _name_function(function)
    return name if name.isidentifier() and not keyword.iskeyword(name) else "function"


def find_unsendable(function: Any) -> str:
    """Name the variable that a function uses and that cannot be pickled, as ``'client' of 'ask'``."""
    import cloudpickle

    visited: set[int] = set()
    name = _name_function(function)
    while inspect.isfunction(function) and id(function) not in visited:
        visited.add(id(function))
        for variable, value in _used_variables(function).items():
            if id(value) in visited:
                continue
            try:
                cloudpickle.dumps(value)
            except Exception:
                if not inspect.isfunction(value):
                    return f"{variable!r} of {function.__name__!r}"
                function = value
                break
    return repr(name)


def _used_variables(function: Any) -> Mapping[str, Any]:
    used = inspect.getclosurevars(function)
    return {**used.globals, **used.nonlocals}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
