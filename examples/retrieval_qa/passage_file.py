"""Passages on disk: ``passages.jsonl``, a JSON string a line, read by the offsets of lines. No text stays in RAM."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

PASSAGES, OFFSETS = "passages.jsonl", "passages.offsets.npy"
CHUNK_BYTES = 16 * 1024 * 1024


class PassageFile:
    """The passages of a folder."""

    def __init__(self, folder: Path) -> None:
        """Finds the offsets of the lines where there are none yet; raises OSError without passages."""
        self._path = folder / PASSAGES
        self._file = os.open(self._path, os.O_RDONLY)
        offsets = folder / OFFSETS
        if not offsets.exists() or _last(offsets) != self._path.stat().st_size:
            _write_offsets(self._path, offsets)
        self._offsets = np.load(offsets, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, numbers: Iterable[int]) -> list[str]:
        """The passages of these numbers, from 0; raises ValueError naming a line that is no JSON string."""
        return [self._read(int(number)) for number in numbers]

    def _read(self, number: int) -> str:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        try:
            text = json.loads(os.pread(self._file, end - start, start))
        except ValueError:
            text = None
        if not isinstance(text, str):
            raise ValueError(f"{self._path} line {number + 1} is not a JSON string")
        return text


def _last(path: Path) -> int:
    return int(np.load(path, mmap_mode="r")[-1])


def _write_offsets(source: Path, target: Path) -> None:
    """Where each line begins, and where the last one ends: uint64 [passages + 1]. Raises ValueError without any."""
    parts, read = [np.zeros(1, dtype=np.uint64)], 0
    ends_line = True
    with source.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            ends = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + 1
            parts.append((ends + read).astype(np.uint64))
            read += len(chunk)
            ends_line = chunk.endswith(b"\n")
    if not ends_line:
        parts.append(np.array([read], dtype=np.uint64))
    if not read:
        raise ValueError(f"{source} holds no passage")
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    with unfinished.open("wb") as file:
        np.save(file, np.concatenate(parts))
    unfinished.replace(target)
