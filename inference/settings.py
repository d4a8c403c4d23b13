"""Settings of an inference node."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightningbus.common.role_settings import KvCachePolicy, ModelRoleSettings
from lightningbus.schemas.base import MAX_POLICIES

MAX_REQUESTS = 4096
"""Requests that a gateway handles at once."""
MAX_LOGPROBS = 20
"""Log-probabilities of a token that vLLM gives at most, unless its --max-logprobs says otherwise."""


ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class AdapterSettings(BaseModel):
    """Several versions of LoRA adapters loaded beside the base at once, instead of merged into it."""

    model_config = ConfigDict(extra="forbid")

    rank: int = Field(ge=1, le=512, description="largest rank of adapters; the learner's lora.lora_rank")
    max_loaded_versions: int = Field(
        default=3,
        ge=1,
        le=64,
        description="newest versions of a model that answer calls; 3 covers all tokens that a learner of "
        "max_staleness 2 trains on",
    )
    models: list[ModelName] = Field(
        default=[],
        max_length=MAX_POLICIES,
        description="models whose adapters start from the same base, each with its own learner; default: `model` alone",
    )

    @model_validator(mode="after")
    def _are_distinct(self) -> Self:
        if len(set(self.models)) < len(self.models):
            raise ValueError("models names a model twice")
        return self


class InferenceSettings(ModelRoleSettings):
    """One vLLM engine and the gateway in front of it."""

    model_path: Path = Field(
        description="model directory: architecture and tokenizer; the weights come from the bus, unless `frozen`"
    )
    model: ModelName = Field(
        default="policy", description="name of the model, in agents' calls and for its versions on the bus"
    )
    frozen: bool = Field(
        default=False,
        description="serve the weights in `model_path` as version 0, and follow no versions: a model without a learner",
    )
    id: str | None = Field(
        default=None, description="name of this node; default: host-pid", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    host: str = Field(
        default="127.0.0.1", description="address the gateway listens on; vLLM itself is on a socket of its node"
    )
    port: int = Field(default=0, ge=0, le=65535, description="port of the gateway; 0 takes a free one")
    inference_api_key_file: Path | None = Field(
        default=None, description="file with the key that requests must carry; without it the gateway stays on loopback"
    )
    max_requests: int = Field(
        default=MAX_REQUESTS,
        gt=0,
        description="requests the gateway answers at once; further ones get 429 with Retry-After",
    )
    advertise_url: str | None = Field(
        default=None,
        description="URL by which runners reach the gateway; default: http://host:port, where the host of all "
        "interfaces is this machine's address",
    )
    dtype: str = Field(
        default="auto",
        description="number format of weights and computation: vLLM's --dtype. auto: that of the model's files; on a "
        "GPU vLLM's own choice, which makes bfloat16 of float32; float32 on a CPU that would emulate 16 bits",
    )
    max_model_len: int | None = Field(
        default=None, gt=0, description="longest prompt plus answer in tokens: vLLM's --max-model-len"
    )
    max_num_seqs: int = Field(default=64, gt=0, description="requests decoded together: vLLM's --max-num-seqs")
    cpu_threads: int | None = Field(
        default=None, gt=0, description="CPU threads of the engine; default: vLLM's own choice"
    )
    kv_cache_gib: float = Field(default=1.0, gt=0, description="memory for the KV cache in GiB, only without a GPU")
    kv_cache_on_swap: KvCachePolicy = Field(
        default="auto",
        description="KV cache of requests in flight at a swap of weights. keep: the old weights' values; recompute: "
        "new values, at the cost of a prefill; auto: keep if the weights changed little",
    )
    kv_cache_max_change: float = Field(
        default=0.01,
        ge=0,
        description="largest change of the weights, as a share of their norm, for which kv_cache_on_swap `auto` keeps "
        "the KV cache",
    )
    lora: AdapterSettings | None = Field(
        default=None,
        description="serve several versions of LoRA adapters at once and load them without a pause; default: merge "
        "adapters into the weights, which works for any model and decodes fastest",
    )
    tool_parser: str | None = Field(
        default=None,
        description="parser of the model's tool calls, as hermes or llama3_json: vLLM's --tool-call-parser",
    )
    reasoning_parser: str | None = Field(
        default=None, description="parser of the model's reasoning, as qwen3: vLLM's --reasoning-parser"
    )
    vllm_command: list[str] | None = Field(
        default=None,
        description="command that starts vLLM's server, without arguments; default: the one of this interpreter",
    )
    vllm_args: list[str] = Field(default=[], description="further arguments for vLLM's server")
    startup_timeout_seconds: float = Field(default=600.0, gt=0, description="seconds the engine may take to start")
    work_dir: Path = Field(
        default=Path("runs/inference"),
        description="directory for fetched weights and the engine's log, used by one node only",
    )

    @property
    def models(self) -> list[str]:
        """Names of the models that this node serves."""
        return (self.lora.models if self.lora else []) or [self.model]

    @property
    def engine_dtype(self) -> str:
        """Number format of the computation by vLLM's name: ``--dtype`` of `vllm_args` comes before `dtype`."""
        return self.find_vllm_argument("--dtype") or self.dtype

    @property
    def is_quantized(self) -> bool:
        """Whether `vllm_args` let the engine quantise the weights that it is given."""
        return any(self.find_vllm_argument(flag) is not None for flag in ("--quantization", "-q"))

    def find_vllm_argument(self, flag: str) -> str | None:
        """Return the value of a flag in `vllm_args`, such as ``--max-logprobs``, where it stands last; else None."""
        words = [word for argument in self.vllm_args for word in argument.split("=", 1)]
        values = [value for word, value in pairwise([*words, ""]) if word.replace("_", "-") == flag]
        return values[-1] if values else None

    def allow_logprobs(self, count: int) -> Self:
        """Return a copy whose engine gives ``count`` log-probabilities of a token.

        Raises ValueError if `vllm_args` allow fewer.
        """
        limit = self.find_vllm_argument("--max-logprobs")
        if limit is None and count > MAX_LOGPROBS:
            return self.model_copy(update={"vllm_args": [*self.vllm_args, "--max-logprobs", str(count)]})
        if limit is not None and limit.isdigit() and int(limit) < count:
            raise ValueError(f"inference.vllm_args: --max-logprobs {limit} is below the {count} of teacher.top_k")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.frozen and self.lora:
            raise ValueError("frozen serves the weights of model_path as they are: leave out lora")
        if self.model not in self.models:
            if "model" in self.model_fields_set:
                raise ValueError(f"model: {self.model!r} is not one of lora.models: leave it out")
            self.model = self.models[0]
        return self
