"""One vLLM server as a child process, in its own process group; it ends when this process ends.

Its control routes have no authentication. So it listens on a Unix socket in a directory that only this user may enter,
and not on a port, which any process of this machine could reach.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from lightningbus.common.observability import metrics
from lightningbus.common.observability.tracing import without_otel_exporter_env
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.common.unix_sockets import PathTooLongError, private_directory
from lightningbus.inference.engine.base import EngineError, EngineKilledError
from lightningbus.inference.engine.vllm_client import VllmClient
from lightningbus.inference.engine.vllm_command import command, environment
from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas.text import shorten_line

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
MAX_ERROR_CHARS = 300
STOP_SECONDS = 10.0
END_SECONDS = 1.0
IDLE_SECONDS = 2.0
"""Shorter than the 5 s after which vLLM closes an idle connection: reusing it just then would fail."""
CONNECT_SECONDS = 5.0


HARMLESS = re.compile(r"(\(.*?\) )?(DEBUG|INFO|WARNING) ")
"""Begins a line of vLLM's log that is not an error, whatever it names."""


class VllmServer:
    """Starts vLLM and waits until it is healthy; an async context manager."""

    def __init__(self, settings: InferenceSettings) -> None:
        self._settings = settings
        self.client: VllmClient
        """HTTP to vLLM, also after a restart."""
        self._session: aiohttp.ClientSession
        self._process: asyncio.subprocess.Process | None = None
        self.log_path = settings.work_dir / "vllm.log"
        self._exits = contextlib.ExitStack()
        self._socket: Path

    async def __aenter__(self) -> "VllmServer":
        """Create the socket's directory and an HTTP session for it; raises `EngineError` if that fails."""
        try:
            self._socket = self._exits.enter_context(private_directory("vllm")) / "socket"
        except PathTooLongError as error:
            raise EngineError(str(error)) from error
        connector = aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=IDLE_SECONDS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        self.client = VllmClient(self._session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._session.close()
        self._exits.close()

    async def start(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Start, wait until vLLM is healthy, and ``prepare`` it, within the time limit; raises `EngineError`."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        metrics.engine_starts.inc()
        with self.log_path.open("ab") as out:
            self._process = await spawn(
                *command(self._settings, self._socket),
                env=without_otel_exporter_env(os.environ) | environment(self._settings, self._socket.parent),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
            )
        try:
            async with asyncio.timeout(self._settings.startup_timeout_seconds):
                while not await self.client.is_healthy():
                    code = self._process.returncode
                    if code is not None:
                        kind = EngineKilledError if code < 0 else EngineError
                        raise kind(f"vLLM ended with {code}: {self._last_log_error()}")
                    await asyncio.sleep(POLL_SECONDS)
                await prepare()
        except EngineError as error:
            if await self._was_killed():
                raise EngineKilledError(str(error)) from error
            raise
        except TimeoutError:
            raise EngineError(
                f"vLLM did not start within {self._settings.startup_timeout_seconds:g} s: {self._last_log_error()}; "
                "a large model or a busy machine needs more: raise inference.startup_timeout_seconds"
            ) from None

    async def _was_killed(self) -> bool:
        """Return whether a signal has ended the process. Waits, because a connection closes before its process ends."""
        assert self._process is not None
        try:
            async with asyncio.timeout(END_SECONDS):
                return await self._process.wait() < 0
        except TimeoutError:
            return False

    async def wait_exit(self) -> int:
        """Wait until the process ends; returns its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Terminate the whole process group, and kill it after 10 s."""
        process, self._process = self._process, None
        if process is not None and not await terminate(process, STOP_SECONDS):
            log.warning("vLLM did not end within %g s and was ended by force", STOP_SECONDS)

    def _last_log_error(self) -> str:
        error = find_error(self.log_path.read_text(errors="replace"))
        return f"{error or 'no error in its log'} (log: {self.log_path})"


def find_error(log: str) -> str:
    """Find the last error in vLLM's log that does not refer to another one above it; empty: none. Pure."""
    lines = [line for line in log.splitlines() if "Error" in line and not HARMLESS.match(line)]
    errors = [line.split("] ")[-1].strip() for line in lines]
    causes = [error for error in errors if "See root cause above" not in error] or errors
    return shorten_line(causes[-1], MAX_ERROR_CHARS) if causes else ""
