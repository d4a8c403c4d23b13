"""An executor for each slot of a runner, with a workspace for each rollout where its settings ask for one."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightningbus.runners.agent import factory
from lightningbus.runners.agent.environment import agent_environment
from lightningbus.runners.agent.executors import AgentExecutor, CommandExecutor, PythonExecutor
from lightningbus.runners.agent.launcher import AgentLauncher, Launcher
from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.workspaces.containers.agent_files import AGENT_PLACE
from lightningbus.runners.workspaces.executor import WorkspaceExecutor
from lightningbus.runners.workspaces.pool import PYTHON, WorkspacePool


def make_executors(
    settings: RunnerSettings,
    slots: Sequence[Callable[[], dict[str, str]]],
    watchdog: ProcessWatchdog,
    gateway: Mapping[str, str],
) -> list[AgentExecutor]:
    """Make an executor for each slot by the settings; see `lightningbus.runners.agent.factory.make_executors`."""
    if settings.workspace is None:
        return factory.make_executors(settings, slots, watchdog, gateway)
    is_container = settings.workspace.has_containers
    python = factory.resolve_program(settings.python_executable or Path(PYTHON if is_container else sys.executable))
    limits = ResourceLimits.from_settings(settings)
    paths = {**({} if is_container else factory.sandbox_paths(python)), **gateway}
    environment = agent_environment(os.environ, settings.env, is_here=not is_container)
    pool = WorkspacePool(settings, gateway.get("gateway", ""))
    path = AGENT_PLACE if is_container else str(settings.working_dir.absolute())

    def make_agent(launcher: Launcher) -> AgentExecutor:
        if settings.command is not None:
            return CommandExecutor([word.replace("{path}", path) for word in settings.command], launcher)
        return PythonExecutor(python, settings.entrypoint or "", launcher, 1, settings.working_dir)

    def make_executor(slot: Callable[[], dict[str, str]]) -> AgentExecutor:
        launcher = AgentLauncher(settings.working_dir, environment, slot, limits, [], paths, watchdog)
        return WorkspaceExecutor(pool, launcher, make_agent)

    return [make_executor(slot) for slot in slots]
