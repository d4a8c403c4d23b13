"""vLLM as a `lightningbus.inference.engine.base.Engine`, over its control routes."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from lightningbus.inference.engine.base import (
    BroadcastContent,
    EngineCapabilities,
    EngineError,
    EngineRejectedError,
    Forward,
    NotFiniteError,
    WeightSource,
)
from lightningbus.inference.engine.broadcast_seats import rendezvous_info, supported_backends
from lightningbus.inference.engine.vllm_command import computes_in_float32, has_gpu, list_parsers
from lightningbus.inference.engine.vllm_server import VllmServer
from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas.weights.events import BroadcastCapability, BroadcastPlan, RankAssignment

WARMUP_PROMPTS: tuple[list[list[int]], ...] = ([[0]], [[0], [0]])
"""Batches of token prompts: vLLM compiles for one prompt, and once more for several."""
NAN_IN_JSON = "not JSON compliant"
"""Part of vLLM's error for a response that would hold NaN."""


class VllmEngine:
    """A vLLM server of a node; an async context manager."""

    def __init__(self, settings: InferenceSettings) -> None:
        self._settings = settings
        self._server = VllmServer(settings)
        self.capabilities = EngineCapabilities(
            parsers=tuple(list_parsers(settings)), is_float32=computes_in_float32(settings)
        )
        """Known once vLLM is up, except parsers and number format."""

    async def __aenter__(self) -> "VllmEngine":
        """Open the connection to vLLM; raises `EngineError` if its socket cannot be created."""
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    async def start(self) -> None:
        """Start vLLM, and warm it up."""
        self.capabilities = replace(self.capabilities, engine_id="", broadcast=None)
        await self._server.start(self._prepare)

    async def stop(self) -> None:
        """Terminate the whole process group, and kill it after 10 s."""
        await self._server.stop()

    async def wait_exit(self) -> EngineError:
        """Wait for the exit code of vLLM's process."""
        return EngineError(f"vLLM ended with {await self._server.wait_exit()}")

    async def pause(self, *, recompute_kv_cache: bool) -> None:
        """Freeze requests in the queue; the KV cache of requests in flight is recomputed as they resume (vLLM 0.31)."""
        await self._post(f"/pause?mode=keep&clear_cache={'true' if recompute_kv_cache else 'false'}")

    async def resume(self) -> None:
        """Thaw requests."""
        await self._post("/resume")

    async def load_weights(self, source: WeightSource, version: int, fingerprint: str = "") -> None:
        """Have `lightningbus.inference.engine.worker.weight_transfer` load weights in each worker."""
        update_info: dict[str, Any] = (
            {"content": source.fingerprint, "size": source.size}
            if isinstance(source, BroadcastContent)
            else {"paths": [str(path.resolve()) for path in source], "content": fingerprint}
        )
        await self._post("/start_weight_update")
        await self._post("/update_weights", {"update_info": update_info})
        await self._post("/finish_weight_update", {"weight_version": str(version)})

    async def join_broadcast(self, plan: BroadcastPlan, assignment: RankAssignment) -> None:
        """Have each worker join the group."""
        await self._post("/init_weight_transfer_engine", {"init_info": rendezvous_info(plan, assignment)})

    async def load_adapter(self, name: str, directory: Path) -> None:
        """Load adapters by vLLM's own loader, between two steps."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(directory.resolve())})

    async def unload_adapter(self, name: str) -> None:
        """Unload adapters; vLLM may read their files again for calls that were aborted a moment ago."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def score(self, model: str, prompts: Sequence[Sequence[int]], version: int) -> list[list[float]]:
        """Read the log-probabilities of the prompts beside one sampled token."""
        choices = await self._complete(model, prompts, version, max_tokens=1, prompt_logprobs=0)
        try:
            return [
                [_logprob(entry, token) for entry, token in zip(choice["prompt_logprobs"][1:], prompt[1:], strict=True)]
                for choice, prompt in zip(choices, prompts, strict=True)
            ]
        except (LookupError, TypeError, ValueError) as error:
            raise _malformed(error) from error

    async def sample(
        self, model: str, prompts: Sequence[Sequence[int]], max_tokens: int, version: int
    ) -> list[list[float]]:
        """Sample all answers in one request."""
        choices = await self._complete(model, prompts, version, max_tokens=max_tokens, logprobs=0)
        try:
            return [[_number(value) for value in choice["logprobs"]["token_logprobs"]] for choice in choices]
        except (LookupError, TypeError, ValueError) as error:
            raise _malformed(error) from error

    @property
    def forward(self) -> Forward:
        """Pass a request on as it is: the public API is vLLM's."""
        return self._server.client.forward

    async def _post(self, path: str, body: object = None) -> None:
        await self._server.client.post(path, body)

    async def _complete(
        self, model: str, prompts: Sequence[Sequence[int]], version: int, **options: int
    ) -> list[dict[str, Any]]:
        """Return one choice per prompt, in the order of the prompts."""
        body = {"model": model, "prompt": prompts, "temperature": 1.0, "cache_salt": f"v{version}", **options}
        try:
            response = await self._server.client.post_json("/v1/completions", body)
        except EngineRejectedError as error:
            if NAN_IN_JSON in str(error):
                raise NotFiniteError(str(error)) from error
            raise
        try:
            return sorted(response["choices"], key=lambda choice: int(choice["index"]))
        except (LookupError, TypeError, ValueError) as error:
            raise _malformed(error) from error

    async def _prepare(self) -> None:
        if not self._settings.frozen:
            await self._post("/init_weight_transfer_engine", {"init_info": {}})
        max_model_len = await self._fetch_max_model_len()
        ranks = await self._fetch_num_workers()
        await self._warm_up()
        engine_id = secrets.token_hex(4)
        self.capabilities = replace(
            self.capabilities,
            engine_id=engine_id,
            max_model_len=max_model_len,
            broadcast=BroadcastCapability(engine=engine_id, ranks=ranks, backends=supported_backends(has_gpu())),
        )

    async def _fetch_max_model_len(self) -> int:
        try:
            return int((await self._server.client.get_json("/v1/models"))["data"][0]["max_model_len"])
        except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            raise EngineError(f"vLLM does not say how long its context is: {type(error).__name__}: {error}") from error

    async def _fetch_num_workers(self) -> int:
        """Count tensor, pipeline and data parallel workers together."""
        try:
            return int((await self._server.client.get_json("/get_world_size"))["world_size"])
        except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            raise EngineError(f"vLLM does not say how many workers it has: {type(error).__name__}: {error}") from error

    async def _warm_up(self) -> None:
        """Let vLLM compile its samplers now: otherwise the first calls do, for longer than some rollouts may take."""
        # Several tokens each: the second prompt joins the batch while the first is being decoded.
        request = {"model": self._settings.model, "max_tokens": 8, "ignore_eos": True, "temperature": 1, "logprobs": 0}
        for prompts in WARMUP_PROMPTS:
            await self._post("/v1/completions", {**request, "prompt": prompts})


def _malformed(error: Exception) -> EngineError:
    return EngineError(f"vLLM's response to a canary trial is malformed: {error!r}")


def _logprob(entry: dict[str, Any], token: int) -> float:
    return _number(entry[str(token)]["logprob"])


def _number(value: Any) -> float:
    """Read a number of JSON, which has no NaN: null stands for it."""
    return math.nan if value is None else float(value)
