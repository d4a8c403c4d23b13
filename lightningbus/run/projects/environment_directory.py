"""Directory for an environment of another library: its adapter, its tasks, and a run file that trains on them."""

import itertools
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.new_directory import is_vacant, written_beside
from lightningbus.runners.agent.factory import resolve_program
from lightningbus.schemas.text import shorten_line
from lightningbus.tasks.task_loading import load_tasks

log = logging.getLogger(__name__)

MAX_ERROR = 500
"""Most characters of an environment's error."""
WARNING = "warning: "
"""Begin of a line by which an adapter warns, on its standard error."""
ADAPTERS = {
    "gymnasium": "gymnasium_adapter",
    "nemo-gym": "nemo_gym_adapter",
    "openenv": "openenv_adapter",
    "verifiers": "verifiers_adapter",
}
"""Module that runs an environment, by its kind."""
HARBOR = "harbor"
"""Kind whose tasks are converted, and need no adapter."""
KINDS = (*ADAPTERS, HARBOR)
SOURCES = Path(__file__).parents[2] / "environments"
PACKAGE = "environment"
TASKS, HELDOUT, RUN_FILE, CONFIG = "tasks.jsonl", "heldout.jsonl", "run.yaml", "environment.json"
DEADLINE_SECONDS = 300
LEARNING_RATE = 1e-6


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """An environment with its arguments and interpreter."""

    kind: str
    name: str
    arguments: Mapping[str, Any]
    python: Path
    module_directory: Path | None
    """Directory of modules that are not installed; None without any."""
    concurrency: int = 16
    """Rollouts that one process runs at once."""
    variables: Sequence[str] = ()
    """Environment variables of its processes, in the form of `RunnerSettings.env`."""

    @property
    def all_variables(self) -> list[str]:
        """Environment variables, with ``PYTHONPATH`` for the directory of modules."""
        where = [] if self.module_directory is None else [f"PYTHONPATH={self.module_directory.absolute()}"]
        return [*where, *self.variables]


def parse_name(text: str) -> tuple[str, str]:
    """Split ``KIND:NAME``; a directory of Harbor becomes absolute. Raises `UserError` for an unknown kind."""
    kind, separator, name = text.partition(":")
    if not separator or not name:
        raise UserError(f"{text!r} is not of the form KIND:NAME, such as verifiers:gsm8k")
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no kind of environment: {suggest_name(kind, KINDS)}")
    return kind, str(Path(name).absolute()) if kind == HARBOR else name


def parse_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` words into nested arguments: a value is JSON if it can be, and a dot in a key is a level."""
    arguments: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise UserError(f"--arg: {word!r} is not of the form key=value")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        *levels, last = key.split(".")
        level = arguments
        for name in levels:
            level = level.setdefault(name, {})
            if not isinstance(level, dict):
                raise UserError(f"--arg: {key!r} has a level that has a value already")
        level[last] = value
    return arguments


def as_file_name(name: str) -> str:
    """Convert the last part of an environment's name into a valid name for a run and its directory. Pure."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name.rstrip("/").rsplit("/", 1)[-1])[:64]


def write_environment(
    spec: EnvironmentSpec, directory: Path, model_path: Path, limit: int | None, num_heldout: int
) -> tuple[int, int]:
    """Write the directory, whole or not at all; return the numbers of training and held-out tasks.

    Raises `UserError` if the environment cannot be loaded, and `lightningbus.tasks.errors.TaskFileError` for a task
    that cannot be published.
    """
    if not is_vacant(directory):
        raise UserError(f"{directory} is there already: choose another --out")
    with written_beside(directory) as draft:
        shutil.copytree(SOURCES, draft / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        config = {"adapter": ADAPTERS[spec.kind], "name": spec.name, "arguments": spec.arguments}
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        _write_tasks(spec, draft, limit, num_heldout)
        counts = len(load_tasks(draft / TASKS)), len(load_tasks(draft / HELDOUT))
        (draft / RUN_FILE).write_text(render_run_file(spec, directory, model_path, make_agent(spec, directory)))
    return counts


def make_agent(spec: EnvironmentSpec, directory: Path) -> dict[str, Any]:
    """Make the fields of a runner that plays an environment by its adapter. Pure."""
    return {
        "entrypoint": f"{PACKAGE}.entrypoint:rollout",
        "python_executable": str(spec.python),
        "working_dir": str(directory),
        "max_concurrent_per_process": spec.concurrency,
    }


def render_run_file(spec: EnvironmentSpec, directory: Path, model_path: Path, agent: Mapping[str, Any]) -> str:
    """Render a run file that trains a model; ``agent`` are the fields of a runner that say what plays it. Pure."""
    runner: dict[str, Any] = {**agent, "concurrency": spec.concurrency}
    if spec.all_variables:
        runner["env"] = spec.all_variables
    learner = {
        "model_path": str(model_path),
        "tasks": str(directory / TASKS),
        **{name: LearnerSettings.model_fields[name].default for name in ("group_size", "groups_per_step", "max_steps")},
        "rollout_timeout_seconds": DEADLINE_SECONDS,
        "actor": {"optim": {"lr": LEARNING_RATE}},
    }
    fields = {
        "name": as_file_name(directory.name or spec.name),
        "bus": {"port": 0},
        "store": {"http_port": 0},
        "inference": [{"model_path": str(model_path)}],
        "runners": [runner],
        "learner": learner,
        "eval": {"tasks": str(directory / HELDOUT), "deadline": 4 * DEADLINE_SECONDS},
    }
    header = (
        f"# {spec.kind}:{spec.name}, by `lightningbus env`. Train: lightningbus train -c {directory / RUN_FILE}\n"
        "# If the environment has tools, name the parser of the model's calls: inference: [{tool_parser: hermes}]\n"
        "# Ports of 0 are free ones. docs/environments.md says what to set for a small model on the CPU.\n"
    )
    return header + yaml.safe_dump(fields, sort_keys=False)


def _write_tasks(spec: EnvironmentSpec, draft: Path, limit: int | None, num_heldout: int) -> None:
    """Write both files of tasks; held-out tasks are the environment's own, else the last of its tasks."""
    has_heldout = _run_adapter(spec, draft, HELDOUT, "heldout", num_heldout)
    _run_adapter(spec, draft, TASKS, "train", limit)
    if not has_heldout:
        hold_out(spec, draft, num_heldout)


def hold_out(spec: EnvironmentSpec, draft: Path, num_heldout: int) -> None:
    """Hold out the last tenth of the tasks, and ``num_heldout`` at most; raise `UserError` for fewer than two tasks."""
    lines = (draft / TASKS).read_text(encoding="utf-8").splitlines(keepends=True)
    if len(lines) < 2:
        raise UserError(f"{spec.kind}:{spec.name} has {len(lines)} tasks: one to train on and one held out are needed")
    num_train = len(lines) - min(num_heldout, max(1, len(lines) // 10))
    (draft / TASKS).write_text("".join(lines[:num_train]), encoding="utf-8")
    (draft / HELDOUT).write_text("".join(lines[num_train:]), encoding="utf-8")


def find_error(output: str) -> str:
    """Find the error with which a Python program ended, as one line: all lines of the last traceback's message. Pure.

    Without a traceback it is the last line; empty without output.
    """
    lines = output.strip().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    message = (
        [*itertools.dropwhile(lambda line: line.startswith(" "), lines[starts[-1] + 1 :])] if starts else lines[-1:]
    )
    return shorten_line(" ".join(" ".join(message).split()), MAX_ERROR)


def _run_adapter(spec: EnvironmentSpec, draft: Path, file: str, split: str, limit: int | None) -> bool:
    """Have the environment write the tasks of a split, and log its warnings once; return False without such a split."""
    command = [str(resolve_program(spec.python)), "-m", f"{PACKAGE}.entrypoint", file, split]
    if limit is not None:
        command.append(str(limit))
    values = dict(word.split("=", 1) for word in spec.all_variables if "=" in word)
    try:
        done = subprocess.run(
            command, cwd=draft, env={**os.environ, **values}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise UserError(f"{spec.python} cannot be started: {error.strerror}") from error
    if done.returncode:
        reason = find_error(done.stderr) or f"it ended with status {done.returncode}"
        unset = [name for name in spec.all_variables if "=" not in name and name not in os.environ]
        hint = f" (not set here: --env {', --env '.join(unset)})" if unset else ""
        raise UserError(f"{spec.kind}:{spec.name} cannot be used in {spec.python}: {reason}{hint}")
    if split == "train":  # the environment is loaded for each split
        for line in done.stderr.splitlines():
            if line.startswith(WARNING):
                log.warning("%s", line.removeprefix(WARNING))
    return (draft / file).exists()
