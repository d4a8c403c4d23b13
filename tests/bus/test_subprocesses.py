"""Child processes end when they should, whatever they think of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lightningbus.common.processes.subprocesses import ProcessGuard, kill_group, spawn, terminate
from tests.polling import until

pytestmark = pytest.mark.integration

PARENT = """
import subprocess, sys, time
from lightningbus.common.processes.subprocesses import set_pdeathsig
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=set_pdeathsig())
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
    process = await spawn(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
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
    assert not await terminate(process, 0.2)
    assert process.returncode == -signal.SIGKILL
    await asyncio.to_thread(until, lambda: runs(child), False)
    await kill_group(process)


async def test_one_that_obeys_is_ended_gently() -> None:
    process, _ = await start(PARENT)
    assert await terminate(process, 30)
    assert process.returncode == -signal.SIGTERM


async def test_a_group_is_ended_once_for_its_id_may_be_anothers_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: list[int] = []

    def not_allowed(group: int, number: int) -> None:
        signalled.append(group)
        raise PermissionError

    ours = await spawn("true")
    assert await ours.wait() == 0
    monkeypatch.setattr(os, "killpg", not_allowed)
    await kill_group(ours)
    await kill_group(ours)
    assert signalled == [ours.pid] and ours.pid not in ProcessGuard.tracked


FILES = """
import asyncio, resource
from lightningbus.common.processes.subprocesses import ProcessGuard, spawn
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (99, hard))
ProcessGuard.raise_fd_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard) != (99, hard)
async def main():
    await (await spawn("sh", "-c", "ulimit -S -n")).wait()
asyncio.run(main())
"""


def test_a_role_may_open_more_files_and_what_it_starts_as_many_as_before() -> None:
    done = subprocess.run([sys.executable, "-c", FILES], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("99\n", "")


OPEN = "import os; print([fd for fd in range(1024) if os.path.exists(f'/proc/self/fd/{fd}')])"


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_child_inherits_its_standard_streams_and_no_other_descriptor(
    tmp_path: Path, loop: Callable[[Coroutine[Any, Any, bytes]], bytes]
) -> None:
    async def listed() -> bytes:
        process = await spawn(sys.executable, "-c", OPEN, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        await kill_group(process)
        return out

    (secret := tmp_path / "key").write_text("secret")
    inherited = os.open(secret, os.O_RDONLY)
    os.set_inheritable(inherited, True)  # as a library opens a file that does not know of close-on-exec
    try:
        secret.unlink()
        assert loop(listed()) == b"[0, 1, 2]\n"
    finally:
        os.close(inherited)


PRIORITY = """
import asyncio, os, pathlib, sys
from lightningbus.common.processes.subprocesses import spawn

async def start() -> None:
    await (await spawn(sys.executable, *sys.argv[1:])).wait()

group = pathlib.Path("/proc/self/autogroup")
print(os.nice(0), group.read_text().split()[-1] if group.exists() else os.nice(0), flush=True)
if sys.argv[1:]:
    asyncio.run(start())
"""


@pytest.mark.parametrize("niceness", [0, 7])
async def test_a_session_is_as_nice_as_its_processes_and_so_is_that_of_a_grandchild(niceness: int) -> None:
    process = await spawn(
        sys.executable, "-c", PRIORITY, "-c", PRIORITY, niceness=niceness, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    expected = os.nice(0) + niceness
    assert out.decode().splitlines() == [f"{expected} {expected}"] * 2
