"""Bytes of words by their place: the first bytes of all words, then the second and so on. They compress well. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def split_planes(words: NDArray[Any]) -> Bytes:
    """Return ``uint8[n * itemsize]``: the bytes of ``n`` words, all of one place together."""
    by_word = np.ascontiguousarray(words).reshape(-1).view(np.uint8).reshape(-1, words.itemsize)
    return np.ascontiguousarray(by_word.T).ravel()


def join_planes(planes: Bytes, dtype: Any) -> NDArray[Any]:
    """Return the words of which `split_planes` made the planes."""
    words: NDArray[Any] = np.ascontiguousarray(planes.reshape(np.dtype(dtype).itemsize, -1).T).view(dtype)
    return words.ravel()
