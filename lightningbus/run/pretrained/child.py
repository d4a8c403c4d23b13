"""Child processes of a fetch, ended with it."""

import asyncio
import os
from collections.abc import Mapping

from lightningbus.common.processes.subprocesses import kill_group, spawn


async def run_child(*command: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a program to its end; return its exit code and the last line that it wrote to standard error."""
    process = await spawn(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | (environment or {}),
    )
    try:
        _, errors = await process.communicate()
    finally:
        await kill_group(process)
    lines = errors.decode(errors="replace").strip().splitlines()
    return process.returncode or 0, lines[-1].removeprefix("ERROR: ") if lines else ""
