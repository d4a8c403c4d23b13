"""Containers of fake engines: namespaces of bubblewrap, with files, processes and a loopback of their own."""

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

ROOT = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/root", "--setenv", "HOME", "/root"]
ROOT += [word for path in ("/usr", "/etc", "/bin", "/lib") for word in ("--ro-bind", path, path)]
ROOT += ["--ro-bind-try", "/lib64", "/lib64"]


@dataclass
class FakeContainer:
    """A container that is started once."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    has_network: bool = False
    binds: list[str] = field(default_factory=list)
    pid: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        reading, writing = os.pipe()
        network = ["--share-net"] if self.has_network else []
        words = [
            "bwrap",
            "--unshare-all",
            *network,
            "--as-pid-1",
            "--info-fd",
            str(writing),
            *ROOT,
            *self.binds,
            "--chdir",
            "/",
        ]
        self.process = await asyncio.create_subprocess_exec(
            *words, *self.command, pass_fds=[writing], stdin=asyncio.subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", **self.environment}, start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        with os.fdopen(reading) as file:
            self.pid = json.loads(await asyncio.to_thread(file.read))["child-pid"]
        with contextlib.suppress(FileNotFoundError):  # it has ended
            program = Path(f"/proc/{self.pid}/exe")
            while "bwrap" in str(program.readlink()):  # it has yet to make the root and start the command
                await asyncio.sleep(0.01)

    async def execute(self, command: list[str]) -> asyncio.subprocess.Process:
        enter = ["nsenter", "--target", str(self.pid), "--user", "--preserve-credentials", "--all"]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *enter, *command, stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": "/usr/bin:/bin", **self.environment}
        )

    async def kill(self) -> None:
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            await self.process.wait()
