"""Whether host memory holds the reference beside the rest."""

from pathlib import Path

from lightningbus.common.processes.host_memory import MEMINFO, available_bytes, has_room
from lightningbus.schemas.weights.safetensors_header import read_tensors

FLOAT32_BYTES = 4
GIB = 1 << 30


def find_shortage(model_path: Path, meminfo: Path = MEMINFO) -> str:
    """Say how much memory the model in float32 needs beyond what is available; empty if it fits or is not known."""
    try:
        needed = FLOAT32_BYTES * sum(tensor.num_elements for tensor in read_tensors(model_path).values())
    except (OSError, ValueError):
        return ""
    available = available_bytes(meminfo)
    if available is None or has_room(needed, available):
        return ""
    return f"it takes {needed / GIB:.1f} GiB in float32, of which {available / GIB:.1f} GiB are available"
