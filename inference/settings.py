"""Settings of an inference node."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from common.role_settings import RoleSettings

MAX_REQUESTS = 4096
"""Requests that a gateway handles at once."""


class AdapterSettings(BaseModel):
    """Several versions of LoRA adapters loaded beside the base at once, instead of merged into it."""

    model_config = ConfigDict(extra="forbid")

    rank: int = Field(ge=1, le=512, description="largest rank of adapters; the learner's lora.lora_rank")
    max_loaded_versions: int = Field(
        3,
        ge=1,
        le=64,
        description="newest versions that answer calls; 3: those whose tokens a learner of max_staleness 2 trains on",
    )


class InferenceSettings(RoleSettings):
    """One vLLM engine and the gateway in front of it."""

    model_path: Path = Field(description="model directory: architecture and tokenizer; the weights come from the bus")
    model: str = Field(
        "policy", description="name agents ask for, and whose versions are followed", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    id: str | None = Field(None, description="name of this node; default: host-pid", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    host: str = Field("127.0.0.1", description="address the gateway listens on; vLLM itself is on a socket of its node")
    port: int = Field(0, ge=0, le=65535, description="port of the gateway; 0 takes a free one")
    inference_api_key_file: Path | None = Field(
        None, description="file with the key a request must bring; without one the gateway stays on loopback"
    )
    max_requests: int = Field(MAX_REQUESTS, gt=0, description="requests the gateway answers at once; others come again")
    advertise_url: str | None = Field(None, description="URL runners reach the gateway at; default: http://host:port")
    dtype: str = Field("auto", description="vLLM's --dtype")
    max_model_len: int | None = Field(None, gt=0, description="vLLM's --max-model-len, in tokens")
    max_num_seqs: int = Field(64, gt=0, description="vLLM's --max-num-seqs: requests decoded together")
    cpu_threads: int | None = Field(None, gt=0, description="CPU threads of the engine; default: vLLM's own choice")
    kv_cache_gib: float = Field(1.0, gt=0, description="memory for the KV cache where there is no GPU, in GiB")
    kv_cache_on_swap: Literal["keep", "recompute"] = Field(
        "recompute",
        description="what requests in flight have in the KV cache after a swap: what the old weights computed, or the "
        "same tokens computed again, at the cost of a prefill",
    )
    lora: AdapterSettings | None = Field(
        None,
        description="hold versions of adapters beside one another, loaded without a pause; without it they are added "
        "into the weights, which any model can take and which decodes fastest",
    )
    tool_parser: str | None = Field(
        None,
        description="vLLM's --tool-call-parser, as hermes or llama3_json: how the model writes that it calls a tool",
    )
    reasoning_parser: str | None = Field(
        None, description="vLLM's --reasoning-parser, as qwen3: how the model marks what it thinks"
    )
    vllm_command: list[str] | None = Field(
        None, description="what starts vLLM's server, arguments follow; default: the one of this interpreter"
    )
    vllm_args: list[str] = Field([], description="more arguments for vLLM's server")
    startup_timeout_seconds: float = Field(600.0, gt=0, description="how long the engine may take to start")
    work_dir: Path = Field(Path("runs/inference"), description="directory for fetched weights and the engine's log")
