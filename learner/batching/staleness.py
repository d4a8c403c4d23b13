"""How far behind a token may be, and what is left out. Pure.

Every policy has a name in the setting ``off_policy``: ``wait`` acts when tasks are dispatched, ``ready_first`` when
groups are taken, ``drop`` and ``mask_tokens`` when a batch is made.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from learner.batching.sequences import NOT_TRAINED, Row


def lags(rows: Iterable[Row], version: int) -> NDArray[np.int64]:
    """Per trained token, in row order: the version being trained less the version that made the token."""
    versions = [row.versions[row.trained] for row in rows]
    return version - np.concatenate(versions) if versions else np.zeros(0, dtype=np.int64)


def worst_lag(rows: Sequence[Row], version: int) -> int:
    """Lag of the oldest trained token; 0 if there is none."""
    return int(lags(rows, version).max(initial=0))


def mask_tokens(rows: Iterable[Row], version: int, max_staleness: int) -> list[Row]:
    """The rows with every token beyond the bound as context; rows of which nothing is left are left out."""
    masked = []
    for row in rows:
        calls = np.where(version - row.versions > max_staleness, NOT_TRAINED, row.calls)
        masked.append(replace(row, calls=calls))
    return [row for row in masked if row.tokens]
