"""A directory with Harbor's tasks: tasks in workspaces, graded by their own tests, and a shell as their agent."""

import asyncio
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from lightningbus.run.errors import UserError
from lightningbus.run.projects.environment_directory import (
    HELDOUT,
    RUN_FILE,
    TASKS,
    EnvironmentSpec,
    hold_out,
    render_run_file,
)
from lightningbus.run.projects.harbor_task import HIDDEN, HarborTaskError, convert_task
from lightningbus.run.projects.harbor_trials import HarborTrials
from lightningbus.run.run_directory.new_directory import is_vacant, written_beside
from lightningbus.run.settings.run_file import validate_settings
from lightningbus.runners.agent.executors import AgentError
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.agent.reward_function import RewardTimeoutError
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.runners.workspaces.factory import make_executors
from lightningbus.tasks.task_loading import load_tasks

WORKSPACES = "workspaces"
FAILURES = (AgentError, WorkspaceFailedError, WorkspaceRefusedError, RewardTimeoutError, TimeoutError)


class HarborArguments(BaseModel):
    """Arguments of a directory of tasks."""

    model_config = ConfigDict(extra="forbid")

    provider: Literal["bubblewrap", "docker", "kubernetes"] = "bubblewrap"
    image: str = "python:3.12-slim"
    """Image of containers; with ``{name}`` it is one for each task, built by its Dockerfile."""
    skip: bool = False
    """Leave out tasks that no workspace can have, instead of refusing all tasks."""


def write_harbor(
    spec: EnvironmentSpec, directory: Path, model_path: Path, limit: int | None, num_heldout: int
) -> tuple[int, int]:
    """Write the directory, whole or not at all; return the numbers of training and held-out tasks.

    Several tasks are tried at once; a command that was stopped goes on with those that it has not tried. Raises
    `UserError` where there is no task, or some that no workspace can have.
    """
    arguments = validate_settings(HarborArguments, spec.arguments, "--arg")
    folders = sorted(file.parent for pattern in ("task.toml", "*/task.toml") for file in Path(spec.name).glob(pattern))
    if not folders:
        raise UserError(f"{spec.name} has no task.toml, nor has a directory in it")
    if not is_vacant(directory):
        raise UserError(f"{directory} is there already: choose another --out")
    trials = HarborTrials(
        directory.with_name(f".{directory.name}.trials.json"), arguments.model_dump_json(exclude={"skip"})
    )
    with written_beside(directory) as draft:
        (draft / "agent").mkdir()
        agent = resources.files("lightningbus.templates") / "harbor" / "agent.py"
        (draft / "agent" / "agent.py").write_text(agent.read_text("utf-8"), "utf-8")
        lines, reasons = asyncio.run(_convert_all(folders, draft, arguments, trials, limit))
        if reasons:
            print(describe_reasons(reasons), file=sys.stderr)
        if reasons and not (arguments.skip and lines):
            advice = "--arg skip=true leaves them out" if lines else "there is no other"
            raise UserError(f"{len(reasons)} of the tasks cannot run by {arguments.provider}: {advice}")
        (draft / TASKS).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        hold_out(spec, draft, num_heldout)
        workspace = make_workspace(arguments, directory, name_image(arguments, lines[0]["id"]))
        runner = {"entrypoint": "agent:solve", "working_dir": str(directory / "agent"), "workspace": workspace}
        if arguments.provider == "bubblewrap":
            runner["python_executable"] = str(spec.python)
        (draft / RUN_FILE).write_text(render_run_file(spec, directory, model_path, runner))
        sizes = len(load_tasks(draft / TASKS)), len(load_tasks(draft / HELDOUT))
    trials.forget()
    return sizes


def name_image(arguments: HarborArguments, name: str) -> str:
    """Name the image of a task whose `task.toml` names none. Pure."""
    return arguments.image.replace("{name}", name)


def make_workspace(arguments: HarborArguments, directory: Path, image: str) -> dict[str, Any]:
    """Make the settings of workspaces whose files lie in a directory. Pure."""
    workspace: dict[str, Any] = {"sources": [str(directory / WORKSPACES)], "provider": arguments.provider}
    return workspace if arguments.provider == "bubblewrap" else {**workspace, "image": image}


async def _convert_all(
    folders: Sequence[Path], draft: Path, arguments: HarborArguments, trials: HarborTrials, limit: int | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the lines of the first ``limit`` tasks that passed their trials, and why each other one cannot run."""
    lines: list[dict[str, Any]] = []
    reasons: dict[str, str] = {}
    num_at_once = os.cpu_count() or 1
    for start in range(0, len(folders), num_at_once):
        batch = folders[start : start + num_at_once]
        converted = await asyncio.gather(*(_convert(folder, draft, arguments, trials) for folder in batch))
        for folder, line in zip(batch, converted, strict=True):
            if limit is not None and len(lines) >= limit:
                _remove_files(draft, folder)
            elif isinstance(line, str):
                reasons[folder.name] = line
            else:
                lines.append(line)
        if limit is not None and len(lines) >= limit:
            break
    return lines, reasons


async def _convert(folder: Path, draft: Path, arguments: HarborArguments, trials: HarborTrials) -> dict[str, Any] | str:
    """Return the line of a task that passed its trial, else the reason why it cannot run here."""
    image = name_image(arguments, folder.name)
    try:
        own_image = image if "{name}" in arguments.image else ""
        line, solve = convert_task(folder, draft / WORKSPACES, own_image, arguments.provider != "bubblewrap")
        reason = trials.find(folder)
        if reason is None:
            await _try_task(line["input"], solve, folder, make_workspace(arguments, draft, image))
            trials.record(folder, "")
    except HarborTaskError as error:
        reason = str(error)
        trials.record(folder, reason)
    if reason:
        _remove_files(draft, folder)
    return reason or line


def _remove_files(draft: Path, folder: Path) -> None:
    for path in (draft / WORKSPACES / folder.name, draft / WORKSPACES / HIDDEN / folder.name):
        shutil.rmtree(path, ignore_errors=True)


def describe_reasons(reasons: Mapping[str, str]) -> str:
    """Return a table of the tasks that cannot run, and why. Pure."""
    width = max(map(len, reasons))
    return "\n".join(f"{name:<{width}}  {reason}" for name, reason in reasons.items())


async def _try_task(inputs: dict[str, Any], solve: str, folder: Path, workspace: dict[str, Any]) -> None:
    """Grade the untouched task, then its own solution; raise `HarborTaskError` if that earns nothing."""
    try:
        before, _ = await _play(inputs, "echo null", folder / "tests", workspace)
        after, how = await _play(inputs, solve, folder / "solution", workspace) if solve else (math.inf, "")
    except AgentStartError as error:
        raise UserError(str(error)) from None
    except FAILURES as error:
        raise HarborTaskError(str(error) or "it did not end in time") from None
    if after <= before:
        raise HarborTaskError(f"its own solution has reward {after:g} here, as without it ({how})")


async def _play(inputs: dict[str, Any], script: str, directory: Path, workspace: dict[str, Any]) -> tuple[float, Any]:
    """Run a script as the agent of a rollout; return the reward and what it printed as JSON."""
    fields = {"command": ["/bin/bash", "-c", script], "working_dir": directory, "workspace": workspace}
    settings = RunnerSettings.model_validate(fields)
    with tempfile.NamedTemporaryFile() as gateway:
        async with ProcessWatchdog() as watchdog, asyncio.timeout(inputs["seconds"]):
            paths = {"gateway": gateway.name, "address": "127.0.0.1:1"}  # no model is asked
            (executor,) = make_executors(settings, [dict], watchdog, paths)
            try:
                await executor.start()
                await executor.prepare(inputs)
                answer = await executor.run(inputs)
                rewards = (await executor.grade(inputs, answer))["reward"]["rewards"]
            finally:
                await executor.stop()
    return rewards.get("reward", next(iter(rewards.values()))), answer["value"]
