"""Runs roles as child processes of one supervisor."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.backoff import RetryPolicy
from lightningbus.common.observability.logs import extract_message
from lightningbus.common.processes import procfs
from lightningbus.common.processes.memory_limit import describe_memory_limit
from lightningbus.common.processes.priority import COMPUTING_NICENESS
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.common.role_settings import ModelRoleSettings
from lightningbus.inference.engine.vllm_command import has_gpu
from lightningbus.run.errors import UserError
from lightningbus.run.processes.role_process import EX_TEMPFAIL
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import BUS_VARIABLE
from lightningbus.run.settings.run_file import ROLE_SECTIONS
from lightningbus.run.settings.sources import without_settings

log = logging.getLogger(__name__)

STOP_SECONDS = 30.0
RESTART_POLICY = RetryPolicy(0.5, 15.0)
MAX_RESTARTS = 5
"""Most restarts in a row of a child that ends before it has settled; after them it has failed for good."""
STABLE_AFTER_SECONDS = 5.0
"""Seconds after which a child that is killed or loses the bus counts as settled, which resets the count of restarts."""
CRASH_SECONDS = 600.0
"""Seconds after which a child that exits by its own error counts as settled: loading a model takes minutes."""
MIN_CPU_SHARE = 0.01
"""Part of the time for which a process that works uses a core at least, on a busy machine too."""
KILLED = (-signal.SIGKILL, -signal.SIGTERM)
COMPUTING_ROLES = ("learner", "inference", "auditor")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child process: its name in logs, its role (the subcommand of ``lightningbus``), its settings."""

    name: str
    role: str
    settings: BaseModel


def find_interpreter(child: ChildSpec) -> Path:
    """Return the Python interpreter of a child: the one in its settings, else this process's."""
    chosen = child.settings.python_executable if isinstance(child.settings, ModelRoleSettings) else None
    return chosen or Path(sys.executable)


def choose_niceness(role: str, has_gpu: bool) -> int:
    """Return the niceness of a role: what computes on the processors gives way to store, bus and page. Pure."""
    return COMPUTING_NICENESS if role in COMPUTING_ROLES and not has_gpu else 0


class RestartPolicy:
    """Decides whether, and how soon, a child that ended is restarted. Pure."""

    def __init__(self) -> None:
        self._short_lives = 0

    def next_delay(self, code: int, lived: float) -> float | None:
        """Return the seconds until the restart; None: failed for good. ``lived`` is the child's lifetime in seconds."""
        if code == 2:  # the role said in one sentence that it cannot go on
            return None
        settled = STABLE_AFTER_SECONDS if code in (*KILLED, EX_TEMPFAIL) else CRASH_SECONDS
        self._short_lives = 0 if lived >= settled else self._short_lives + 1
        if self._short_lives > MAX_RESTARTS and code != EX_TEMPFAIL:
            return None
        return RESTART_POLICY.delay_after(self._short_lives)


class Supervisor:
    """Starts children, restarts those that die, and stops them all in order."""

    def __init__(
        self,
        directory: RunDirectory,
        bus_url: str,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[ChildSpec], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare the supervisor.

        ``environment``: variables for children, which may have a path to a secret, never a secret. ``prepare`` is
        called for a child before it starts.
        """
        self._directory = directory
        self._bus_url = bus_url
        self._environment = dict(environment or {})
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: dict[str, asyncio.Task[int]] = {}
        self._children: dict[str, ChildSpec] = {}
        self._restarting: set[str] = set()
        self._starts: Counter[str] = Counter()
        self._stopping: set[str] = set()
        self._also: list[asyncio.Future[None]] = []
        self._prepare = prepare

    async def start(self, child: ChildSpec) -> None:
        """Start a child and keep it running; one that exits with 0 is done."""
        if self._prepare is not None:
            await self._prepare(child)
        self._children[child.name] = child
        self._stopping.discard(child.name)
        await self._spawn(child)
        self._watchers[child.name] = asyncio.create_task(self._watch(child.name))

    async def restart(self, child: ChildSpec) -> None:
        """Let a child end by itself at the next good moment (SIGUSR1), and start it again with these settings.

        Return once it is asked to. A child that was not started, is done or is stopped stays as it is.
        """
        watcher = self._watchers.get(child.name)
        if watcher is None or watcher.done() or child.name in self._stopping:
            return
        self._children[child.name] = child
        self._restarting.add(child.name)
        with contextlib.suppress(ProcessLookupError):  # it has ended, and is started again by whoever waits for it
            self._processes[child.name].send_signal(signal.SIGUSR1)

    async def wait_finished(self, name: str) -> None:
        """Wait until a child has done its work; raises `UserError` if it failed for good."""
        code = await self._watchers[name]
        if code:
            raise UserError(self._describe_end(name, code))

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something else that the children depend on; its error counts as a failed child."""
        self._also.append(asyncio.ensure_future(work))

    async def wait_for_failure(self) -> None:
        """Wait until some child has failed for good, then raise `UserError`."""
        while True:
            for other in self._also:
                if other.done():
                    other.result()
            running: list[asyncio.Future[Any]] = [task for task in self._also if not task.done()]
            running += [watcher for watcher in self._watchers.values() if not watcher.done()]
            for name, watcher in self._watchers.items():
                if watcher.done() and not watcher.cancelled() and watcher.result():
                    raise UserError(self._describe_end(name, watcher.result()))
            if not running:
                await asyncio.Event().wait()
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    async def wait_idle(self, name: str, seconds: float) -> None:
        """Wait until a child has hardly used the CPU for so many seconds: it hangs. A missing child is idle."""
        while True:
            process = self._processes.get(name)
            began = procfs.cpu_seconds(process.pid) if process is not None else 0.0
            await asyncio.sleep(seconds)
            if process is None or (
                self._processes[name] is process and procfs.cpu_seconds(process.pid) - began < MIN_CPU_SHARE * seconds
            ):
                return

    async def stop(self, *names: str, seconds: float = STOP_SECONDS) -> None:
        """Ask children to end (SIGTERM), in the order given; end each by force after some seconds."""
        for name in names:
            await self._stop_one(name, seconds)

    async def stop_all(self) -> None:
        """Stop all children: runners first, so that their results are still trained on and stored; the store last."""
        await cancel_and_wait(*self._also)
        order = {"runner": 0, "grader": 1, "learner": 2, "auditor": 2, "inference": 3, "store": 4}
        names = sorted(self._processes, key=lambda name: order.get(name.split("-")[0], 0))
        by_rank: dict[int, list[str]] = {}
        for name in names:
            by_rank.setdefault(order.get(name.split("-")[0], 0), []).append(name)
        for rank in sorted(by_rank):
            await asyncio.gather(*(self._stop_one(name) for name in by_rank[rank]))

    def expected(self) -> dict[str, str]:
        """Return the roles, by name, of the children that should be alive: started, not done, and not stopped."""
        return {
            name: self._children[name].role
            for name, watcher in self._watchers.items()
            if name not in self._stopping and (not watcher.done() or (not watcher.cancelled() and watcher.result()))
        }

    def pids(self) -> dict[str, int]:
        """Return the process ids of the living children, by name."""
        return {name: process.pid for name, process in self._processes.items() if process.returncode is None}

    async def _spawn(self, child: ChildSpec) -> None:
        settings = self._directory.path / "work" / f"{child.name}.json"
        settings.touch(0o600)  # a store's address may hold a password
        settings.write_text(json.dumps(child.settings.model_dump(mode="json"), indent=2))
        command = [
            str(find_interpreter(child)),
            "-P",  # a directory of the user's may have the name of a package of ours
            "-m",
            "lightningbus",
            child.role,
            "--settings",
            str(settings),
        ]
        environment = (
            without_settings(os.environ, [role for role, _ in ROLE_SECTIONS.values()])
            | self._environment
            | {BUS_VARIABLE: self._bus_url}
        )  # it may hold a password
        self._starts[child.name] += 1
        with self._directory.log(child.name).open("ab") as out:
            try:
                self._processes[child.name] = await spawn(
                    *command,
                    niceness=choose_niceness(child.role, has_gpu()),
                    stdout=out,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd=Path.cwd(),
                    env=environment,
                )
            except OSError as error:
                raise UserError(
                    f"{child.name}: python_executable: {command[0]} cannot be started: {error.strerror}"
                ) from error

    async def _watch(self, name: str) -> int:
        restarts = RestartPolicy()
        while True:
            started = time.monotonic()
            code = await self._processes[name].wait()
            is_restart = name in self._restarting and code in (0, -signal.SIGUSR1)
            self._restarting.discard(name)
            if name in self._stopping or (code == 0 and not is_restart):
                return 0
            if not is_restart:
                pause = restarts.next_delay(code, time.monotonic() - started)
                if pause is None:
                    return code
                message = self._read_last_message(name)
                if code == EX_TEMPFAIL:
                    log.warning("%s has to start again (%s), in %.1f s", name, message, pause)
                else:
                    log.warning("%s ended with %d (%s); starting it again in %.1f s", name, code, message, pause)
                await asyncio.sleep(pause)
                if name in self._stopping:
                    return 0
            child = self._children[name]
            await self._spawn(child)
            if self._children[name] is not child:  # its settings changed meanwhile
                await self.restart(self._children[name])

    async def _stop_one(self, name: str, seconds: float = STOP_SECONDS) -> None:
        self._stopping.add(name)
        if not await terminate(self._processes[name], seconds):
            log.warning("%s did not end within %g s and was ended by force", name, seconds)
        await asyncio.gather(self._watchers[name], return_exceptions=True)

    def _describe_end(self, name: str, code: int) -> str:
        starts = self._starts[name]
        often = f", the last of {starts} starts" if starts > 1 else ""
        message = f"{self._read_last_message(name)} (log: {self._directory.log(name)})"
        return f"{name} ended with {code}{often}: {message}{describe_memory_limit()}"

    def _read_last_message(self, name: str) -> str:
        lines = self._directory.log(name).read_text(errors="replace").splitlines()
        written = [line for line in lines if line.strip()]
        return extract_message(written[-1]) if written else "no output"
