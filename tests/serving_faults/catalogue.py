"""The faults: what they are called, where they were met, and in which process they act."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SWITCH_VARIABLE = "LIGHTNINGBUS_TEST_FAULT_FILE"
"""Names the file that holds the name of the fault that acts now; empty, or no file: none does."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    name: str
    met_in: str
    """An issue or pull request, as ``owner/repository#number``."""
    process: Literal["engine", "node"]
    weights: Literal["full", "merged adapters", "adapters"] = "full"
    """The kind of versions that it concerns: adapters are merged by the engine, or loaded beside one another."""
    restarts_engine: bool = False
    """It shows once the engine is started again."""


FAULTS = (
    Fault("stale prefix cache after a swap", "NVIDIA-NeMo/RL#4018", "engine"),
    Fault("adapters merged twice", "huggingface/peft#1355", "engine", "merged adapters"),
    Fault("half an update applied", "sgl-project/sglang#14178", "engine"),
    Fault("tied head left behind", "PrimeIntellect-ai/prime-rl#2823", "engine"),
    Fault("wrong cache salt", "vllm-project/vllm#42125", "engine", "adapters"),
    Fault("adapter swapped", "vllm-project/vllm#47724", "node", "adapters"),
    Fault("version mislabelled", "areal-project/AReaL#1569", "node"),
    Fault("requests answered during an update", "meta-pytorch/torchforge#251", "node"),
    Fault("a scale missing", "Tencent-Hunyuan/UniRL#155", "engine", "merged adapters"),
    Fault("old checkpoint loaded on restart", "huggingface/trl#5312", "engine", restarts_engine=True),
    Fault("top-p reported as raw", "NVIDIA-NeMo/RL#69", "engine"),
    Fault("temperature dropped", "vllm-project/vllm#15241", "engine"),
)


def acts(name: str) -> bool:
    """Whether a fault acts now."""
    assert name in {fault.name for fault in FAULTS}, name
    path = os.environ.get(SWITCH_VARIABLE)
    try:
        return path is not None and Path(path).read_text() == name
    except FileNotFoundError:
        return False
