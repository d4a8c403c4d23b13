"""vLLM's server in a fork of a process that has imported vLLM, which takes most of the time of its start."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

POLL_SECONDS = 0.1
PR_SET_PDEATHSIG = 1


class ForkedServer:
    """A process that waits to become the server; made before this process has threads.

    It stands in for `asyncio.subprocess.Process`.
    """

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write)
            _serve(read)
        os.close(read)

    async def spawn(self, *command: str, env: Mapping[str, str], stdout: BinaryIO, **_: Any) -> "ForkedServer":
        """Start the server, once; in place of `lightningbus.common.processes.subprocesses.spawn`."""
        start = {"arguments": command[command.index("-m") + 1 :], "environment": dict(env), "log": stdout.name}
        with os.fdopen(self._write, "w") as pipe:
            json.dump(start, pipe)
        return self

    async def wait(self) -> int:
        """Wait until the process ends; return its exit code."""
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            else:
                await asyncio.sleep(POLL_SECONDS)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process, which has not been waited for."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process and all of its group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        while self.returncode is None and os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            time.sleep(POLL_SECONDS)


def _fork_further() -> None:
    """Let vLLM fork its own processes as on a GPU: its CPU build starts them anew, to import everything again."""
    from vllm.utils import system_utils

    def choose_fork() -> None:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    system_utils._maybe_force_spawn = choose_fork


def _serve(read: int) -> None:
    import ctypes
    import runpy

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    with os.fdopen(read) as pipe:
        text = pipe.read()
    if not text:  # the process that made this one has ended, or needs no server
        os._exit(0)
    start = json.loads(text)
    log = os.open(start["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(start["environment"])
    _fork_further()
    module, *arguments = start["arguments"]
    sys.argv = [module, *arguments]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as error:  # its last line is what a node says of it
        import traceback

        traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    os._exit(code)
