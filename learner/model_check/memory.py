"""Whether host memory holds the reference beside the rest."""

from collections.abc import Iterable
from pathlib import Path

from lightningbus.schemas.weights.safetensors_header import InvalidSafetensorsError, parse_tensors, read_header

FLOAT32_BYTES = 4
SHARE = 0.8
"""Part of the available memory that the reference may take."""
MEMINFO = Path("/proc/meminfo")
GIB = 1 << 30


def find_shortage(model_path: Path, meminfo: Path = MEMINFO) -> str:
    """Say how much memory the model in float32 needs beyond what is available; empty: it fits, or nobody knows."""
    needed = FLOAT32_BYTES * _count_parameters(model_path.glob("*.safetensors"))
    try:
        available = _read_available(meminfo.read_text())
    except (OSError, ValueError, StopIteration):
        return ""
    if needed <= SHARE * available:
        return ""
    return f"it takes {needed / GIB:.1f} GiB in float32, of which {available / GIB:.1f} GiB are available"


def _count_parameters(files: Iterable[Path]) -> int:
    count = 0
    for file in files:
        try:
            tensors = parse_tensors(read_header(file), file.stat().st_size)
        except (OSError, InvalidSafetensorsError):
            continue
        for tensor in tensors.values():
            size = 1
            for length in tensor.shape:
                size *= length
            count += size
    return count


def _read_available(text: str) -> int:
    """Return the available bytes that Linux's ``/proc/meminfo`` names."""
    (kib,) = next(line.split()[1:2] for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(kib) * 1024
