"""Whether host memory holds the reference beside the rest."""

from pathlib import Path

from lightningbus.schemas.weights.safetensors_header import read_tensors

FLOAT32_BYTES = 4
SHARE = 0.8
"""Part of the available memory that the reference may take."""
MEMINFO = Path("/proc/meminfo")
GIB = 1 << 30


def find_shortage(model_path: Path, meminfo: Path = MEMINFO) -> str:
    """Say how much memory the model in float32 needs beyond what is available; empty if it fits or is not known."""
    try:
        needed = FLOAT32_BYTES * sum(tensor.num_elements for tensor in read_tensors(model_path).values())
        available = _read_available(meminfo.read_text())
    except (OSError, ValueError, StopIteration):
        return ""
    if needed <= SHARE * available:
        return ""
    return f"it takes {needed / GIB:.1f} GiB in float32, of which {available / GIB:.1f} GiB are available"


def _read_available(text: str) -> int:
    """Return the available bytes that Linux's ``/proc/meminfo`` names."""
    (kib,) = next(line.split()[1:2] for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(kib) * 1024
