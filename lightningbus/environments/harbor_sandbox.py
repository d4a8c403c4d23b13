"""Commands in a sandbox of bubblewrap: this machine's programs, the task's files, and no network."""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64")
CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl")
MAX_FILE_KIB = 1024 * 1024
MAX_OUTPUT = 8_000
"""Characters that are returned of what a command prints, half from its start and half from its end."""


async def run_in_sandbox(
    root: Path,
    command: str,
    workdir: PurePosixPath,
    env: Mapping[str, str],
    mounts: Mapping[str, Path],
    seconds: float,
) -> tuple[int | None, str]:
    """Run a bash command; returns its status, None if it ran longer than ``seconds``, and what it printed.

    Each directory of ``root`` is one of the sandbox that it can write; ``mounts`` are others that it can only read.
    Every process it starts has ended when this returns.
    """
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--uid", "0", "--gid", "0"]
    words += ["--cap-drop", "ALL", "--clearenv", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in PROGRAMS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    for directory in sorted(root.iterdir()):
        words += ["--bind", str(directory), f"/{directory.name}"]
    for file in CONFIGURATION:
        words += ["--ro-bind-try", file, file]
    for place, source in mounts.items():
        words += ["--ro-bind", str(source), place]
    for name, value in {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **env}.items():
        words += ["--setenv", name, str(value)]
    words += ["--chdir", str(workdir), "/bin/bash", "-c", f"ulimit -f {MAX_FILE_KIB}\n{command}"]
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
        status: int | None = None
        try:
            async with asyncio.timeout(seconds):
                status = await process.wait()
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                process.kill()  # its namespace of processes ends with it
                await process.wait()
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        head = output.read(MAX_OUTPUT // 2 if size > MAX_OUTPUT else MAX_OUTPUT)
        if size > MAX_OUTPUT:
            output.seek(size - MAX_OUTPUT // 2)
            head += b"\n...\n" + output.read()
    return status, head.decode(errors="replace")
