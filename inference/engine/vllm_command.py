"""The command line and the environment of vLLM's server. Pure, except that it looks for a GPU and reads a model's
configuration.
"""

import os
import sys
from pathlib import Path

from lightningbus.common.processor import has_bfloat16
from lightningbus.inference.engine.answer_parser import MIDDLEWARE
from lightningbus.inference.engine.vllm_plugin import BACKEND
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.version_registry import capacity
from lightningbus.schemas.weights.dtypes import ALIASES, AUTO, choose_cpu_dtype, read_dtype

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as --max-lora-rank."""


def command(settings: InferenceSettings, socket: Path) -> list[str]:
    """Build the command line of vLLM's server, listening on ``socket``; the ``vllm`` script fails in its CPU build."""
    arguments: dict[str, object] = {
        "model": settings.model_path,
        "uds": socket,
        "dtype": _choose_dtype(settings),
        "max-num-seqs": settings.max_num_seqs,
        # Log-probabilities of the distribution sampled from, after temperature and truncation.
        "logprobs-mode": "processed_logprobs",
        # Sampling parameters come from the request only, not from a file beside the model.
        "generation-config": "vllm",
    }
    if not settings.frozen:
        # Weights come from the bus; those beside the tokenizer would only be read to be replaced.
        arguments["load-format"] = "dummy"
        arguments["weight-transfer-config"] = f'{{"backend": "{BACKEND}"}}'
    if settings.max_model_len is not None:
        arguments["max-model-len"] = settings.max_model_len
    if settings.lora is not None:
        # vLLM keeps as many on the CPU (--max-cpu-loras) unless told otherwise.
        arguments["max-loras"] = len(settings.models) * capacity(settings.lora.max_loaded_versions)
        arguments["max-lora-rank"] = next(rank for rank in LORA_RANKS if rank >= settings.lora.rank)
    if settings.reasoning_parser is not None:
        arguments["reasoning-parser"] = settings.reasoning_parser
    if settings.tool_parser is not None:
        arguments["tool-call-parser"] = settings.tool_parser
    if list_parsers(settings):
        arguments["middleware"] = MIDDLEWARE
    flat = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    quiet = ["--disable-uvicorn-access-log"]
    adapters = [] if settings.lora is None else ["--enable-lora"]
    tools = [] if settings.tool_parser is None else ["--enable-auto-tool-choice"]
    eager = [] if has_gpu() else ["--enforce-eager"]
    # -P: the working directory may contain a directory named like a package that vLLM imports.
    server = settings.vllm_command or [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    # All names answer /tokenize, which needs no weights.
    names = ["--served-model-name", *settings.models]
    return [*server, *flat, *names, *quiet, *eager, *adapters, *tools, *settings.vllm_args]


def list_parsers(settings: InferenceSettings) -> list[str]:
    """List the kinds of parsers that a node's vLLM has: ``reasoning``, ``tool``, both, or none."""
    flags = {argument.partition("=")[0].replace("_", "-") for argument in settings.vllm_args}
    has_reasoning = settings.reasoning_parser is not None or "--reasoning-parser" in flags
    has_tools = settings.tool_parser is not None or "--tool-call-parser" in flags
    return ["reasoning"] * has_reasoning + ["tool"] * has_tools


def computes_in_float32(settings: InferenceSettings) -> bool:
    """Return whether a node's vLLM is told to compute in float32."""
    dtype = settings.find_vllm_argument("--dtype") or _choose_dtype(settings)
    return ALIASES.get(dtype, dtype) == "float32"


def environment(settings: InferenceSettings, sockets: Path) -> dict[str, str]:
    """Build the environment variables for vLLM: control routes on, no usage report, CPU limits.

    ``sockets``: directory of the sockets between its processes.
    """
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOG_STATS_INTERVAL": "600",  # in its log; `--disable-log-stats` would empty its /metrics too
        "VLLM_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        # Its processes talk to each other over sockets and ports without authentication.
        "VLLM_RPC_BASE_PATH": str(sockets),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    if settings.lora is not None:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if not has_gpu():
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(settings.kv_cache_gib)))
    if settings.cpu_threads is not None:
        variables |= {"OMP_NUM_THREADS": str(settings.cpu_threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return variables


def _choose_dtype(settings: InferenceSettings) -> str:
    """Return vLLM's --dtype: its own ``auto`` would round float32 files on a CPU, and emulate bfloat16 slowly."""
    if settings.dtype == AUTO and not has_gpu() and (settings.model_path / "config.json").exists():
        return choose_cpu_dtype(read_dtype(settings.model_path), has_bfloat16=has_bfloat16())
    return settings.dtype


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU."""
    return Path("/dev/nvidiactl").exists()
