"""The processes of a run, each started by its command line, and started again when it dies."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.commands import environment

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
LIGHTNINGBUS = [sys.executable, "-m", "lightningbus"]
ENGINE = [sys.executable, str(ROOT / "tests" / "chaos" / "vllm.py"), "--token-seconds", "0.02"]
RESTART_SECONDS = 0.5
RESTARTED = (-signal.SIGKILL, 75)
"""Statuses after which a service manager starts a role again: it was killed, or it asks for it."""
PARENTS = {"nats-server": "bus", "engine-0": "inference-0"}
"""Targets that are the child of another process."""


class RoleEndedError(AssertionError):
    """A role ended by itself with an error."""


class Processes:
    """The processes by name; all of them write their logs into one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Processes"]:
        """Run processes for the block, and kill all of them at its end."""
        try:
            yield self
        finally:
            for keeper in self._keepers.values():
                keeper.cancel()
            await asyncio.gather(*self._keepers.values(), return_exceptions=True)
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                await process.wait()

    async def start(self, name: str, *arguments: str) -> None:
        """Start a role and keep it up."""
        await self._spawn(name, arguments)
        self._keepers[name] = asyncio.create_task(self._keep(name, arguments))

    async def start_role(self, name: str, role: str, settings: Mapping[str, Any], bus: str) -> None:
        """Start a role by a file of its settings."""
        path = self._directory / f"{name}.json"
        path.write_text(json.dumps(settings))
        await self.start(name, role, "--bus", bus, "--settings", str(path))

    async def wait_for_line(self, name: str, pattern: str) -> str:
        """Wait until the log of a process has a line with a pattern; return the pattern's group."""
        while not (match := re.search(pattern, self._log(name).read_text())):
            self.check()
            await asyncio.sleep(0.05)
        return match[1]

    async def ended(self, name: str) -> None:
        """Wait until a process ends well."""
        while not self._keepers[name].done():
            self.check()
            await asyncio.sleep(0.05)
        self.check()

    def check(self) -> None:
        """Raise the error of a role that ended by itself."""
        for keeper in self._keepers.values():
            if keeper.done():
                keeper.result()

    def is_over(self, name: str) -> bool:
        """Whether a process has ended well."""
        return self._keepers[name].done()

    def signal(self, target: str, number: signal.Signals) -> int | None:
        """Send a signal; return the process hit, None if the target has none now."""
        process = self._processes[PARENTS.get(target, target)]
        if process.returncode is not None:
            return None
        try:
            pid = psutil.Process(process.pid).children()[0].pid if target in PARENTS else process.pid
            os.kill(pid, number)
        except (psutil.NoSuchProcess, ProcessLookupError, IndexError):
            return None
        return pid

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    async def _spawn(self, name: str, arguments: tuple[str, ...]) -> None:
        with self._log(name).open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *LIGHTNINGBUS, *arguments, stdout=log, stderr=log, cwd=self._directory, env=environment()
            )

    async def _keep(self, name: str, arguments: tuple[str, ...]) -> None:
        """Start a process again each time it is killed, or asks to be; return when it ends well."""
        while status := await self._processes[name].wait():
            if status not in RESTARTED:
                raise RoleEndedError(f"{name} ended with {status}: {self._log(name).read_text()[-2000:]}")
            await asyncio.sleep(RESTART_SECONDS)  # as a service manager does
            await self._spawn(name, arguments)
