"""How vLLM's server is started: its command line and its environment. Pure, but for a look at the machine."""

import os
import sys
from pathlib import Path

from inference.engine.plugin import BACKEND
from inference.settings import InferenceSettings
from inference.version_registry import capacity

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as its largest."""


def command(settings: InferenceSettings, socket: Path) -> list[str]:
    """Command line of vLLM's server, which listens there; the ``vllm`` script does not work in its CPU build."""
    arguments: dict[str, object] = {
        "model": settings.model_path,
        "served-model-name": settings.model,
        "uds": socket,
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
        arguments["max-loras"] = capacity(settings.lora.versions)
        arguments["max-lora-rank"] = next(rank for rank in LORA_RANKS if rank >= settings.lora.rank)
    if settings.reasoning_parser is not None:
        arguments["reasoning-parser"] = settings.reasoning_parser
    if settings.tool_parser is not None:
        arguments["tool-call-parser"] = settings.tool_parser
    flat = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    quiet = ["--disable-uvicorn-access-log"]
    adapters = [] if settings.lora is None else ["--enable-lora"]
    tools = [] if settings.tool_parser is None else ["--enable-auto-tool-choice"]
    eager = [] if has_gpu() else ["--enforce-eager"]
    # -P: a directory of the user's may have the name of a package that vLLM's processes import.
    server = settings.command or [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, *flat, *quiet, *eager, *adapters, *tools, *settings.extra_args]


def environment(settings: InferenceSettings, sockets: Path) -> dict[str, str]:
    """What vLLM is told by environment: control routes on, no usage report, CPU limits.

    ``sockets`` is a directory for those among its processes.
    """
    told = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOG_STATS_INTERVAL": "600",  # in its log; `--disable-log-stats` would empty its /metrics too
        "VLLM_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        # Its processes talk among themselves, over sockets and ports that ask nobody who it is.
        "VLLM_RPC_BASE_PATH": str(sockets),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    if settings.lora is not None:
        told["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if not has_gpu():
        told["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(settings.kv_cache_gb)))
    if settings.threads is not None:
        told |= {"OMP_NUM_THREADS": str(settings.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return told


def has_gpu() -> bool:
    """Whether this machine has one of NVIDIA's."""
    return Path("/dev/nvidiactl").exists()
