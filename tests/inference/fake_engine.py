"""An engine in memory. It refuses what vLLM refuses: `tests.inference.engine_contract` holds both to that."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from lightningbus.inference.engine.base import (
    BroadcastContent,
    EngineCapabilities,
    EngineError,
    EngineRejectedError,
    NotFiniteError,
    WeightSource,
)
from lightningbus.schemas.weights.events import BroadcastCapability, BroadcastPlan, RankAssignment

MAX_MODEL_LEN = 64


class FakeEngine:
    """One model under the name ``policy``, adapters by their names, and the same log-probability for each token."""

    def __init__(self, *, is_running: bool = False) -> None:
        self.capabilities = EngineCapabilities()
        self.operations: list[str] = []
        """What was done, in order, except what only asks."""
        self.loaded: list[WeightSource] = []
        """Weights since the start."""
        self.adapters: dict[str, Path] = {}
        self.logprob = -1.0
        self.refused_versions: set[int] = set()
        """Whole weights that fail to load."""
        self.open_rendezvous: set[str] = set()
        """Broadcasts that can be joined, by their keys."""
        self._is_paused = False
        self._exited = asyncio.Event()
        self._exited.set()
        self._num_starts = 0
        if is_running:
            self._boot()

    async def __aenter__(self) -> "FakeEngine":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._boot()
        self.operations.append("start")

    def _boot(self) -> None:
        self._num_starts += 1
        engine_id = f"run{self._num_starts}"
        broadcast = BroadcastCapability(engine=engine_id, ranks=1, backends=("gloo",))
        self.capabilities = EngineCapabilities(engine_id, MAX_MODEL_LEN, ("tool",), broadcast)
        self.loaded, self.adapters, self._is_paused = [], {}, False
        self._exited.clear()

    async def stop(self) -> None:
        if not self._exited.is_set():
            self.operations.append("stop")
            self._exited.set()

    async def wait_exit(self) -> EngineError:
        await self._exited.wait()
        return EngineError("the fake engine ended")

    async def pause(self, *, recompute_kv_cache: bool) -> None:
        await self._answer()
        self._is_paused = True
        self.operations.append("pause and recompute" if recompute_kv_cache else "pause")

    async def resume(self) -> None:
        await self._answer()
        self._is_paused = False
        self.operations.append("resume")

    async def load_weights(self, source: WeightSource, version: int, fingerprint: str = "") -> None:
        await self._answer()
        assert self._is_paused, "sampling goes on while weights are loaded"
        missing = [] if isinstance(source, BroadcastContent) else [path for path in source if not path.exists()]
        if missing or version in self.refused_versions:
            raise EngineRejectedError(f"version {version} cannot be loaded")
        self.loaded.append(source)
        self.operations.append(f"load {version}")

    async def join_broadcast(self, plan: BroadcastPlan, assignment: RankAssignment) -> None:
        await self._answer()
        if plan.rendezvous_key not in self.open_rendezvous:
            raise EngineRejectedError("nobody else came")
        self.operations.append(f"join as rank {assignment.rank}")

    async def load_adapter(self, name: str, directory: Path) -> None:
        await self._answer()
        if name in self.adapters or not (directory / "adapter_model.safetensors").exists():
            raise EngineRejectedError(f"adapters {name} cannot be loaded")
        self.adapters[name] = directory

    async def unload_adapter(self, name: str) -> None:
        await self._answer()
        if name not in self.adapters:
            raise EngineRejectedError(f"there are no adapters {name}")
        del self.adapters[name]

    async def score(self, model: str, prompts: Sequence[Sequence[int]], version: int) -> list[list[float]]:
        await self._check_request(model, prompts, 1)
        return [[self.logprob] * (len(prompt) - 1) for prompt in prompts]

    async def sample(
        self, model: str, prompts: Sequence[Sequence[int]], max_tokens: int, version: int
    ) -> list[list[float]]:
        await self._check_request(model, prompts, max_tokens)
        return [[self.logprob] * max_tokens for _ in prompts]

    async def _check_request(self, model: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        await self._answer()
        if model not in {"policy", *self.adapters}:
            raise EngineRejectedError(f"there is no model {model}")
        if max(map(len, prompts)) + max_tokens > MAX_MODEL_LEN:
            raise EngineRejectedError("the prompt is too long")
        if not np.isfinite(self.logprob):
            raise NotFiniteError("the numbers are not finite")

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> "AsyncIterator[FakeResponse]":
        await self._answer()
        if path == "/v1/models":
            yield FakeResponse("application/json", json.dumps(["policy", *self.adapters]).encode())
        else:
            yield FakeResponse("text/event-stream", b'data: {"choices":[]}\n\ndata: [DONE]\n\n')

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self._exited.is_set():
            raise EngineError("the fake engine does not answer")


class FakeResponse:
    """A response whose body has arrived."""

    def __init__(self, content_type: str, body: bytes) -> None:
        self.status, self.content_type, self._body = 200, content_type, body

    async def read(self) -> bytes:
        return self._body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body
