"""Relative change between two weight versions, estimated from a part of both files."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.schemas.weights.safetensors_header import Tensor, parse_tensors, read_header

CHUNKS, CHUNK_ELEMENTS = 8, 2048
"""Parts read of each tensor, evenly spread over it: 0.5 % of a tensor of 3M elements, all of a small one."""
NUMBER_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code) for name, code in (("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"), ("BF16", "<u2"))
}


def estimate_change(base: Path, new: Path) -> float | None:
    """Estimate ``‖new - base‖ / ‖base‖``, Frobenius norms over all floating-point tensors of two safetensors files.

    None where the tensors differ in name, shape or type, or where a number is not finite.
    Raises `lightningbus.schemas.weights.safetensors_header.InvalidSafetensorsError` or `OSError`.
    """
    header, new_header = read_header(base), read_header(new)
    tensors = parse_tensors(header, base.stat().st_size)
    if tensors != parse_tensors(new_header, new.stat().st_size):
        return None
    old_bytes = np.memmap(base, np.uint8, "r", offset=len(header))
    new_bytes = np.memmap(new, np.uint8, "r", offset=len(new_header))
    squares = [0.0, 0.0]
    for tensor in tensors.values():
        if tensor.dtype not in NUMBER_TYPES:
            continue
        old, now = _sample(old_bytes, tensor), _sample(new_bytes, tensor)
        num_elements = math.prod(tensor.shape)
        if num_elements:
            squares[0] += num_elements * float(np.mean(np.square(now - old)))
            squares[1] += num_elements * float(np.mean(np.square(old)))
    change = math.sqrt(squares[0] / squares[1]) if squares[1] else math.nan
    return change if math.isfinite(change) else None


def _sample(data: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.float64]:
    """Sample elements of a tensor, ``f64[S]``, at the same places of every file."""
    begin, end = tensor.data_offsets
    elements: NDArray[Any] = data[begin:end].view(NUMBER_TYPES[tensor.dtype])
    if len(elements) > CHUNKS * CHUNK_ELEMENTS:
        starts = np.linspace(0, len(elements) - CHUNK_ELEMENTS, CHUNKS).astype(int)
        elements = np.concatenate([elements[start : start + CHUNK_ELEMENTS] for start in starts])
    return _to_float(elements, tensor.dtype)


def _to_float(elements: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    if dtype == "BF16":  # the upper half of a float32
        return (elements.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return elements.astype(np.float64)
