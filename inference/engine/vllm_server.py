"""One vLLM server as a child process, in its own process group; it ends when this process ends.

Its control routes have no authentication. So it listens on a Unix socket in a directory that only this user may enter,
and not on a port, which any process of this machine could reach.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
from pathlib import Path
from typing import Any

import aiohttp

from lightningbus.common.observability import metrics
from lightningbus.common.observability.tracing import without_otel_exporter_env
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.common.unix_sockets import PathTooLongError, private_directory
from lightningbus.inference.engine.broadcast_seats import supported_backends
from lightningbus.inference.engine.vllm_command import command, environment, has_gpu
from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas.weights.events import BroadcastCapability

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
CONTROL_TIMEOUT_SECONDS = 120.0
STOP_SECONDS = 10.0
END_SECONDS = 1.0
IDLE_SECONDS = 2.0
"""Shorter than the 5 s after which vLLM closes an idle connection: reusing it just then would fail."""
CONNECT_SECONDS = 5.0
URL = "http://vllm"
"""The engine's URL for a client whose connector always uses its socket."""
WARMUP_PROMPTS: tuple[list[list[int]], ...] = ([[0]], [[0], [0]])
"""Batches of token prompts: vLLM compiles for one prompt, and once more for several."""


class EngineError(Exception):
    """The engine did not start, or rejected a request; the message holds the last error of its log."""


class EngineKilledError(EngineError):
    """A signal ended the engine as it started, so its settings may be right."""


class EngineRejectedError(EngineError):
    """The engine responded with an error; it is alive."""


class VllmServer:
    """Starts vLLM, waits until it is healthy, and calls its control routes; an async context manager."""

    def __init__(self, settings: InferenceSettings) -> None:
        self._settings = settings
        self.session: aiohttp.ClientSession
        """A client of the engine, also after a restart: `URL` and a path."""
        self._process: asyncio.subprocess.Process | None = None
        self.max_model_len: int | None = None
        """Of prompt and answer together, in tokens; known once the engine is up."""
        self.broadcast_capability: BroadcastCapability | None = None
        """How it can take part in a broadcast; new after each start, known once the engine is up."""
        self.log_path = settings.work_dir / "vllm.log"
        self._exits = contextlib.ExitStack()
        self._socket: Path

    async def __aenter__(self) -> "VllmServer":
        """Raises `EngineError` if the socket cannot be created."""
        try:
            self._socket = self._exits.enter_context(private_directory("vllm")) / "socket"
        except PathTooLongError as error:
            raise EngineError(str(error)) from error
        connector = aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=IDLE_SECONDS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self.session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self.session.close()
        self._exits.close()

    async def start(self) -> None:
        """Start, and wait until it is healthy and warm; raises `EngineError`."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.broadcast_capability = None
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
                while not await self._healthy():
                    code = self._process.returncode
                    if code is not None:
                        kind = EngineKilledError if code < 0 else EngineError
                        raise kind(f"vLLM ended with {code}: {self._last_log_error()}")
                    await asyncio.sleep(POLL_SECONDS)
                if not self._settings.frozen:
                    await self.post("/init_weight_transfer_engine", {"init_info": {}})
                self.max_model_len = await self._fetch_max_model_len()
                ranks = await self._fetch_num_workers()
                await self._warm_up()
                self.broadcast_capability = BroadcastCapability(
                    engine=secrets.token_hex(4), ranks=ranks, backends=supported_backends(has_gpu())
                )
        except EngineError as error:
            if await self._was_killed():
                raise EngineKilledError(str(error)) from error
            raise
        except TimeoutError:
            raise EngineError(
                f"vLLM did not start within {self._settings.startup_timeout_seconds:g} s: {self._last_log_error()}"
            ) from None

    async def _was_killed(self) -> bool:
        """Whether a signal has ended the process; waits, because a connection closes before its process has ended."""
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

    async def post(self, path: str, body: object = None) -> None:
        """POST to one of vLLM's own control routes; raises `EngineError`."""
        await self._post(path, body)

    async def post_json(self, path: str, body: object) -> Any:
        """POST; returns the JSON of the response. Raises `EngineRejectedError`, or `EngineError` without a response."""
        text = await self._post(path, body)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineRejectedError(f"vLLM's answer to {path} is no JSON") from error

    async def _post(self, path: str, body: object) -> str:
        # uvicorn closes the connection after an error response, so it must not be reused.
        headers, timeout = {"Connection": "close"}, aiohttp.ClientTimeout(total=CONTROL_TIMEOUT_SECONDS)
        try:
            async with self.session.post(URL + path, json=body, headers=headers, timeout=timeout) as response:
                text = await response.text()
                if response.status != 200:
                    raise EngineRejectedError(f"vLLM answered {response.status} to {path}: {text[:300]}")
                return text
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"vLLM does not answer {path}: {error or type(error).__name__}") from error

    async def _healthy(self) -> bool:
        try:
            async with self.session.get(URL + "/health", timeout=aiohttp.ClientTimeout(total=2)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _fetch_max_model_len(self) -> int:
        try:
            async with self.session.get(URL + "/v1/models") as response:
                return int((await response.json())["data"][0]["max_model_len"])
        except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            raise EngineError(f"vLLM does not say how long its context is: {error}") from error

    async def _fetch_num_workers(self) -> int:
        """Tensor, pipeline and data parallel workers together."""
        try:
            async with self.session.get(URL + "/get_world_size") as response:
                return int((await response.json())["world_size"])
        except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            raise EngineError(f"vLLM does not say how many workers it has: {error}") from error

    async def _warm_up(self) -> None:
        """Let vLLM compile its samplers now: otherwise the first calls do, for longer than some rollouts may take."""
        # Several tokens each: the second prompt joins the batch while the first is being decoded.
        request = {"model": self._settings.model, "max_tokens": 8, "ignore_eos": True, "temperature": 1, "logprobs": 0}
        for prompts in WARMUP_PROMPTS:
            await self.post("/v1/completions", {**request, "prompt": prompts})

    def _last_log_error(self) -> str:
        lines = [line for line in self.log_path.read_text(errors="replace").splitlines() if "Error" in line]
        return f"{lines[-1].split('] ')[-1][:300] if lines else 'no error in its log'} (log: {self.log_path})"
