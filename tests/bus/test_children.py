"""Child processes end when they should, whatever they think of it."""

import asyncio
import signal
import sys
from pathlib import Path

from bus.children import end, kill_group
from tests.waiting import until

PARENT = """
import subprocess, sys, time
from bus.children import ends_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=ends_with_parent())
print(child.pid, flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def start(code: str) -> tuple[asyncio.subprocess.Process, int]:
    """A process, and the child it names."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


async def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    parent, child = await start(PARENT)
    assert runs(child)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await asyncio.to_thread(until, lambda: runs(child), False)


async def test_one_that_ignores_being_asked_is_ended_by_force_with_its_group() -> None:
    process, child = await start(STUBBORN)
    assert not await end(process, 0.2)
    assert process.returncode == -signal.SIGKILL
    await asyncio.to_thread(until, lambda: runs(child), False)
    await kill_group(process)


async def test_one_that_obeys_is_ended_gently() -> None:
    process, _ = await start(PARENT)
    assert await end(process, 30)
    assert process.returncode == -signal.SIGTERM
