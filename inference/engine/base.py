"""The operations that a node needs of an inference engine, and the errors that they raise.

`lightningbus.inference.engine.vllm_engine.VllmEngine` has them over vLLM's control routes. Another engine implements
`Engine` and is given to the node when it is made; ``docs/adr/0019-engine-and-trainer-protocols.md`` says what it has
to do, and ``tests/inference/engine_contract.py`` tests it.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas.weights.events import BroadcastCapability, BroadcastPlan, RankAssignment


class EngineError(Exception):
    """The engine did not start, or rejected a request; the message holds the last error of its log."""


class EngineKilledError(EngineError):
    """A signal ended the engine as it started, so its settings may be right."""


class EngineRejectedError(EngineError):
    """The engine responded with an error; it is alive."""


class NotFiniteError(EngineRejectedError):
    """The engine computed values that are not finite, and may hold them in its KV cache."""


class EngineUnreachableError(EngineError):
    """No connection to the engine was made, so it has not seen the request."""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Facts about an engine; known once it is up, except ``parsers``."""

    engine_id: str = ""
    """Random, and new after each start."""
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens."""
    parsers: tuple[str, ...] = ()
    """Kinds of parsers for whole answers: ``reasoning``, ``tool``, both, or none."""
    broadcast: BroadcastCapability | None = None
    """Its part in a broadcast of weights; None: it receives files only."""
    is_float32: bool = False
    """Whether it computes in float32; False also if that is not known."""


@dataclass(frozen=True, slots=True)
class BroadcastContent:
    """Weights that the members of a joined broadcast receive."""

    fingerprint: str
    """See `lightningbus.schemas.weights.events.WeightManifest`."""
    size: int
    """Bytes of the safetensors file that holds the same weights."""


WeightSource = Sequence[Path] | BroadcastContent
"""Safetensors files, all weights first and then adapters to merge into them; or a broadcast that was joined."""


class EngineResponse(Protocol):
    """A response of the engine to a request that was passed on."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def content_type(self) -> str:
        """Media type, without parameters."""
        ...

    async def read(self) -> bytes:
        """Read the whole body; raises `EngineError`."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raises `EngineError` if it breaks off."""
        ...


class Forward(Protocol):
    """Passes a request of the public API on to an engine."""

    def __call__(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[EngineResponse]:
        """Send a request. Raises `EngineUnreachableError`, or `EngineError` if the engine does not respond."""
        ...


class Engine(Protocol):
    """One inference engine of a node. It can be started again after it has ended, and then has no weights.

    Each operation raises `EngineRejectedError` if the engine refuses it and goes on, else `EngineError`.
    """

    @property
    def capabilities(self) -> EngineCapabilities:
        """Facts about this engine."""
        ...

    async def start(self) -> None:
        """Start, and wait until requests are answered; raises `EngineKilledError` if a signal ended the start."""
        ...

    async def stop(self) -> None:
        """End the engine, by force if it does not end in time. Without a running engine, do nothing."""
        ...

    async def wait_exit(self) -> EngineError:
        """Wait until the engine ends; returns the error that says how."""
        ...

    async def pause(self, *, recompute_kv_cache: bool) -> None:
        """Stop sampling; requests in flight keep their tokens and wait.

        All that was sampled before has arrived when this returns: later chunks get the next version's number.
        ``recompute_kv_cache``: drop what the weights so far have computed.
        """
        ...

    async def resume(self) -> None:
        """Go on sampling, by the weights that are loaded now."""
        ...

    async def load_weights(self, source: WeightSource, version: int, fingerprint: str = "") -> None:
        """Replace all weights while sampling is paused, and check that the engine holds them.

        ``fingerprint``: of the first file of ``source``; it is compared with what was read; empty: unknown.
        After an error the weights may be loaded in part, so the engine must be stopped.
        """
        ...

    async def join_broadcast(self, plan: BroadcastPlan, assignment: RankAssignment) -> None:
        """Wait for all participants of a broadcast; an error leaves the weights as they are."""
        ...

    async def load_adapter(self, name: str, directory: Path) -> None:
        """Add LoRA adapters, in PEFT's format, as a model of a new name; sampling goes on meanwhile."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Remove the adapters of a name."""
        ...

    async def score(self, model: str, prompts: Sequence[Sequence[int]], version: int) -> list[list[float]]:
        """Return, for each prompt, the log-probability of each of its tokens but the first.

        ``version`` keeps apart what versions leave in the prefix cache. NaN stands for a value that the engine cannot
        express. Raises `NotFiniteError`.
        """
        ...

    async def sample(
        self, model: str, prompts: Sequence[Sequence[int]], max_tokens: int, version: int
    ) -> list[list[float]]:
        """Sample an answer to each prompt at temperature 1; returns the log-probabilities of its tokens.

        ``version`` and errors: as in `score`.
        """
        ...

    @property
    def forward(self) -> Forward:
        """Pass a request of the public API on."""
        ...


OpenEngine = Callable[[InferenceSettings], AbstractAsyncContextManager[Engine]]
"""Makes the engine of a node; it is ended when the context is left."""
