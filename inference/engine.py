"""One vLLM server as a child process: loopback only, its own process group, gone when we are gone."""

import asyncio
import json
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import aiohttp

from bus import metrics
from bus.children import end, spawn
from bus.embedded import free_port
from bus.tracing import environment_of_others
from inference.offers import backends
from inference.plugin import BACKEND
from inference.residents import places
from inference.settings import InferenceSettings
from schemas.weights import Reach

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
ADMIN_SECONDS = 120.0
STOP_SECONDS = 10.0
END_SECONDS = 1.0
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as its largest."""
WARMING: tuple[list[list[int]], ...] = ([[0]], [[0], [0]])
"""Prompts of tokens: what is compiled for one is compiled again for more, and then for any number."""


class EngineFailed(Exception):
    """The engine did not start, or refused what it was told; the message holds its last words."""


class EngineKilled(EngineFailed):
    """The engine was ended by a signal as it started, which says nothing about its settings."""


class EngineRefused(EngineFailed):
    """The engine answered, and not as it should; it is alive."""


class Engine:
    """Starts vLLM, knows when it is up, tells it to pause, load and resume."""

    def __init__(self, settings: InferenceSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        self._process: asyncio.subprocess.Process | None = None
        self.max_model_len: int | None = None
        """Longest prompt and answer together, in tokens; known once the engine is up."""
        self.reach: Reach | None = None
        """How weights can be sent straight into it, in this life; known once the engine is up."""
        self.log_path = settings.work / "vllm.log"
        self.url = ""

    async def start(self) -> None:
        """Start and wait until it answers; raises `EngineFailed`."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.reach = None
        port = free_port()
        metrics.engine_starts.inc()
        self.url = f"http://127.0.0.1:{port}"
        with self.log_path.open("ab") as out:
            self._process = await spawn(
                *command(self._settings, port),
                env=environment_of_others(os.environ) | environment(self._settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
            )
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                while not await self._healthy():
                    code = self._process.returncode
                    if code is not None:
                        kind = EngineKilled if code < 0 else EngineFailed
                        raise kind(f"vLLM ended with {code}: {self._last_words()}")
                    await asyncio.sleep(POLL_SECONDS)
                await self.tell("/init_weight_transfer_engine", {"init_info": {}})
                self.max_model_len = await self._context()
                ranks = await self._workers()
                await self._warm()
                self.reach = Reach(engine=secrets.token_hex(4), ranks=ranks, backends=backends(_has_gpu()))
        except EngineFailed as error:
            if await self._was_killed():
                raise EngineKilled(str(error)) from error
            raise
        except TimeoutError:
            raise EngineFailed(
                f"vLLM did not start within {self._settings.start_seconds:g} s: {self._last_words()}"
            ) from None

    async def _was_killed(self) -> bool:
        """Whether a signal has ended the process; a connection is gone a moment before its process is."""
        assert self._process is not None
        try:
            async with asyncio.timeout(END_SECONDS):
                return await self._process.wait() < 0
        except TimeoutError:
            return False

    async def lost(self) -> int:
        """Wait until the process ends; returns its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End the whole process group: gently first, after 10 s by force."""
        process, self._process = self._process, None
        if process is not None and not await end(process, STOP_SECONDS):
            log.warning("vLLM did not end within %g s and was ended by force", STOP_SECONDS)

    async def tell(self, path: str, body: object = None) -> None:
        """POST to one of vLLM's own control routes; raises `EngineFailed`."""
        await self._post(path, body)

    async def ask(self, path: str, body: object) -> Any:
        """POST, and the JSON of the answer; raises `EngineRefused`, or `EngineFailed` if none comes."""
        text = await self._post(path, body)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineRefused(f"vLLM's answer to {path} is no JSON") from error

    async def _post(self, path: str, body: object) -> str:
        # uvicorn hangs up after an error it has answered: who took up that connection again would find it gone.
        headers, timeout = {"Connection": "close"}, aiohttp.ClientTimeout(total=ADMIN_SECONDS)
        try:
            async with self._session.post(self.url + path, json=body, headers=headers, timeout=timeout) as response:
                text = await response.text()
                if response.status != 200:
                    raise EngineRefused(f"vLLM answered {response.status} to {path}: {text[:300]}")
                return text
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineFailed(f"vLLM does not answer {path}: {error or type(error).__name__}") from error

    async def _healthy(self) -> bool:
        try:
            async with self._session.get(self.url + "/health", timeout=aiohttp.ClientTimeout(total=2)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _context(self) -> int:
        try:
            async with self._session.get(self.url + "/v1/models") as response:
                return int((await response.json())["data"][0]["max_model_len"])
        except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            raise EngineFailed(f"vLLM does not say how long its context is: {error}") from error

    async def _workers(self) -> int:
        """Tensor, pipeline and data parallel ones together."""
        try:
            async with self._session.get(self.url + "/get_world_size") as response:
                return int((await response.json())["world_size"])
        except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            raise EngineFailed(f"vLLM does not say how many workers it has: {error}") from error

    async def _warm(self) -> None:
        """Let vLLM compile its samplers now: its first answers do it else, for longer than some rollouts may take."""
        # Several tokens each: the second prompt joins the first where that is already being answered.
        asked = {"model": self._settings.model, "max_tokens": 8, "ignore_eos": True, "temperature": 1, "logprobs": 0}
        for prompts in WARMING:
            await self.tell("/v1/completions", {**asked, "prompt": prompts})

    def _last_words(self) -> str:
        lines = [line for line in self.log_path.read_text(errors="replace").splitlines() if "Error" in line]
        return f"{lines[-1].split('] ')[-1][:300] if lines else 'no error in its log'} (log: {self.log_path})"


def command(settings: InferenceSettings, port: int) -> list[str]:
    """Command line of vLLM's server; the ``vllm`` script does not work in its CPU build."""
    arguments: dict[str, object] = {
        "model": settings.model_path,
        "served-model-name": settings.model,
        "host": "127.0.0.1",
        "port": port,
        "dtype": settings.dtype,
        "max-num-seqs": settings.max_num_seqs,
        # The probabilities actually sampled from, temperature and truncation included.
        "logprobs-mode": "processed_logprobs",
        # Sampling is what the request says, never what a file beside the model says.
        "generation-config": "vllm",
        # What is served comes from the bus; weights beside the tokenizer would only be read to be replaced.
        "load-format": "dummy",
        "weight-transfer-config": f'{{"backend": "{BACKEND}"}}',
    }
    if settings.max_model_len is not None:
        arguments["max-model-len"] = settings.max_model_len
    if settings.lora is not None:
        arguments["max-loras"] = places(settings.lora.versions)
        arguments["max-lora-rank"] = next(rank for rank in LORA_RANKS if rank >= settings.lora.rank)
    if settings.reasoning_parser is not None:
        arguments["reasoning-parser"] = settings.reasoning_parser
    if settings.tool_parser is not None:
        arguments["tool-call-parser"] = settings.tool_parser
    flat = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    quiet = ["--disable-uvicorn-access-log"]
    adapters = [] if settings.lora is None else ["--enable-lora"]
    tools = [] if settings.tool_parser is None else ["--enable-auto-tool-choice"]
    eager = [] if _has_gpu() else ["--enforce-eager"]
    # -P: a directory of the user's may have the name of a package that vLLM's processes import.
    server = settings.command or [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, *flat, *quiet, *eager, *adapters, *tools, *settings.extra_args]


def environment(settings: InferenceSettings) -> dict[str, str]:
    """What vLLM is told by environment: control routes on (loopback only), no usage report, CPU limits."""
    told = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOG_STATS_INTERVAL": "600",  # in its log; `--disable-log-stats` would empty its /metrics too
        "VLLM_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        # Its processes talk among themselves, over ports that ask nobody who it is.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    if settings.lora is not None:
        told["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if not _has_gpu():
        told["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(settings.kv_cache_gb)))
    if settings.threads is not None:
        told |= {"OMP_NUM_THREADS": str(settings.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return told


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()
