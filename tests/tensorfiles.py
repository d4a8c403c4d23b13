"""Safetensors files of any dtype, written as the format says; the library's own writer wants torch for bf16."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "F64": 8, "BOOL": 1}

Contents = Mapping[str, tuple[str, Sequence[int], bytes]]
"""Tensors by name: dtype, shape, bytes."""


def write(path: Path, contents: Contents, metadata: dict[str, str] | None = None) -> Path:
    """A file of these tensors, in this order."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in contents.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in contents.values()))
    return path


def weights(seed: int, elements: int = 50_000) -> dict[str, tuple[str, Sequence[int], bytes]]:
    """A small model in bf16."""
    values = np.random.default_rng(seed).standard_normal(elements, np.float32)
    high = (values.view(np.uint32) >> 16).astype("<u2")
    half = elements // 2
    return {"a": ("BF16", (half,), high[:half].tobytes()), "b": ("BF16", (elements - half,), high[half:].tobytes())}


def stepped(contents: Contents, seed: int, share: float = 0.02) -> dict[str, tuple[str, Sequence[int], bytes]]:
    """The model after a step: the lowest bit of a share of its elements is another."""
    rng = np.random.default_rng(seed)
    by_name = {}
    for name, (dtype, shape, data) in contents.items():
        words = np.frombuffer(data, "<u2").copy()
        words[rng.random(len(words)) < share] ^= 1
        by_name[name] = (dtype, shape, words.tobytes())
    return by_name
