"""Vectors on disk, compared by cosine similarity: exact for few passages; inverted lists, mapped from disk, for many.

Up to `EXACT_UP_TO` passages FAISS compares every vector. Beyond, it is ``IVF,SQ8``: a byte per dimension, in lists of
similar vectors, of which a search reads `PROBES`. The lists stay on disk (``OnDiskInvertedLists``): the page cache
holds what is read often, and the process holds the centroids alone.
"""

import fcntl
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import faiss
import numpy as np
from faiss.contrib.ondisk import merge_ondisk

EXACT_UP_TO = 100_000
PROBES = 32
"""Lists that a search reads."""
TRAINED_PER_LIST = 50
"""Vectors that a centroid is made of; FAISS asks for 39 at least."""
BLOCK = 250_000
"""Vectors in RAM while an index is built. A build that was stopped goes on with the next block."""

VectorsOf = Callable[[np.ndarray], np.ndarray]
"""From passage numbers to their vectors, float32 [numbers, dimensions], of length 1."""


class VectorIndex:
    """An index that was built."""

    def __init__(self, path: Path, num_passages: int, probes: int = PROBES) -> None:
        """Raises ValueError if it is of other passages."""
        self._index = faiss.read_index(str(path), faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY)
        if self._index.ntotal != num_passages:
            raise ValueError(
                f"{path} holds {self._index.ntotal} vectors, but there are {num_passages} passages: remove it"
            )
        self.kind = "flat"
        if isinstance(self._index, faiss.IndexIVF):
            self.kind = f"IVF{self._index.nlist},SQ8"
            self._index.nprobe = probes

    @property
    def dimensions(self) -> int:
        """Of a vector."""
        return int(self._index.d)

    def search(self, vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Similarities and passage numbers, each [vectors, count], nearest first; number -1: the lists hold no more."""
        return self._index.search(vectors, min(count, self._index.ntotal))


def build_index(path: Path, num_passages: int, vectors_of: VectorsOf, exact_up_to: int = EXACT_UP_TO) -> None:
    """Build what `VectorIndex` reads, unless it is there. One process builds; others wait for it."""
    with _locked(path.with_suffix(".lock")):
        if path.exists():
            return
        if num_passages <= exact_up_to:
            vectors = vectors_of(np.arange(num_passages))
            index = faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
            _write(index, path)
        else:
            _build_lists(path, num_passages, vectors_of)


def num_lists_for(num_passages: int) -> int:
    """Twice the square root, as a search compares with all centroids and with ``PROBES`` lists."""
    return max(1, int(2 * math.sqrt(num_passages)))


def _build_lists(path: Path, num_passages: int, vectors_of: VectorsOf) -> None:
    blocks = path.with_suffix(".blocks")
    blocks.mkdir(exist_ok=True)
    trained = blocks / "trained.faiss"
    if not trained.exists():
        _write(_train(num_passages, vectors_of), trained)
    starts = range(0, num_passages, BLOCK)
    files = [blocks / f"{start:012}.faiss" for start in starts]
    for start, file in zip(starts, files, strict=True):
        if not file.exists():
            numbers = np.arange(start, min(start + BLOCK, num_passages))
            index = faiss.read_index(str(trained))
            index.add_with_ids(vectors_of(numbers), numbers)
            _write(index, file)
        print(f"{min(start + BLOCK, num_passages):,} of {num_passages:,} passages indexed", file=sys.stderr, flush=True)
    merged = faiss.read_index(str(trained))
    merge_ondisk(merged, [str(file) for file in files], str(path.with_suffix(".ivfdata")))
    _write(merged, path)  # last: where it is, the build was finished
    shutil.rmtree(blocks)


def _train(num_passages: int, vectors_of: VectorsOf) -> faiss.Index:
    num_lists = num_lists_for(num_passages)
    count = min(num_passages, TRAINED_PER_LIST * num_lists)
    vectors = vectors_of(np.sort(np.random.default_rng(0).choice(num_passages, count, replace=False)))
    index = faiss.index_factory(vectors.shape[1], f"IVF{num_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.spherical = True  # centroids of length 1, as vectors are
    index.train(vectors)
    return index


def _write(index: faiss.Index, path: Path) -> None:
    """Whole or not at all: a reader finds no half of a file."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    faiss.write_index(index, str(unfinished))
    unfinished.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
