"""An executor for each slot of a runner, as its settings ask for."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightningbus.runners.agent.environment import agent_environment
from lightningbus.runners.agent.executors import WORKER_SCRIPT, AgentExecutor, CommandExecutor, PythonExecutor
from lightningbus.runners.agent.launcher import AgentLauncher
from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.agent.reward_function import RewardFunction, with_reward_function
from lightningbus.runners.agent.shared_process import SharedAgent, SharedExecutor, SharedSlotExecutor
from lightningbus.runners.settings import RunnerSettings

RELAY_SCRIPT = Path(__file__).with_name("relay_script.py")


def resolve_program(program: Path) -> Path:
    """Make a relative interpreter path absolute, relative to our own working directory. Symlinks are kept."""
    return program.absolute() if len(program.parts) > 1 else program


def sandbox_paths(python: Path) -> dict[str, str]:
    """List the paths a sandbox must allow: our scripts, the interpreter, its environment, and its base installation."""
    interpreter = Path(shutil.which(python) or sys.executable)
    venv, base = interpreter.parents[1], interpreter.resolve().parents[1]
    if not (venv / "pyvenv.cfg").exists():  # an interpreter that stands anywhere, perhaps in somebody's home
        venv = base
    return {
        "worker": str(WORKER_SCRIPT.parent),
        "relay": str(RELAY_SCRIPT),
        "python": str(interpreter),
        "venv": str(venv),
        "base": str(base),
    }


def uses_socket(settings: RunnerSettings) -> bool:
    """Return whether the gateway's socket is passed on to an agent that has no network."""
    if settings.workspace is not None and settings.workspace.provider != "process":
        return True
    return any("{gateway}" in word for word in settings.sandbox_command)


def make_executors(
    settings: RunnerSettings,
    slots: Sequence[Callable[[], dict[str, str]]],
    watchdog: ProcessWatchdog,
    gateway: Mapping[str, str],
) -> list[AgentExecutor]:
    """Make an executor for each slot by the settings; a slot is called for each process that is started for it.

    ``gateway``: the gateway's ``paths``, for the sandbox.
    """
    python, agent = resolve_program(settings.python_executable or Path(sys.executable)), settings.entrypoint or ""
    limits, paths = ResourceLimits.from_settings(settings), {**sandbox_paths(python), **gateway}
    environment = agent_environment(os.environ, settings.env)

    def launcher_of(slot: Callable[[], dict[str, str]]) -> AgentLauncher:
        return AgentLauncher(settings.working_dir, environment, slot, limits, settings.sandbox_command, paths, watchdog)

    def reward() -> RewardFunction | None:
        if settings.reward_fn is None:
            return None
        return RewardFunction(python, settings.reward_fn, launcher_of(dict), settings.reward_timeout_seconds)

    if settings.command is not None:
        return [CommandExecutor(settings.command, launcher_of(slot)) for slot in slots]
    if settings.max_concurrent_per_process == 1:
        fresh = settings.max_tasks_per_child
        return [
            with_reward_function(PythonExecutor(python, agent, launcher_of(slot), fresh), reward()) for slot in slots
        ]
    groups = range(0, len(slots), settings.max_concurrent_per_process)
    shared = [(SharedAgent(lambda: SharedExecutor(python, agent, launcher_of(dict))), reward()) for _ in groups]
    sharing = [(*shared[number // settings.max_concurrent_per_process], slot) for number, slot in enumerate(slots)]
    return [
        with_reward_function(SharedSlotExecutor(processes, slot), function) for processes, function, slot in sharing
    ]
