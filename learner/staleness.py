"""How far behind a token is, and how much work may be under way. Pure."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from learner.transitions import Row


def lags(rows: Iterable[Row], version: int) -> NDArray[np.int64]:
    """Per token, in row order: the version being trained less the version that made the token."""
    versions = [row.versions for row in rows]
    return version - np.concatenate(versions) if versions else np.zeros(0, dtype=np.int64)


def worst_lag(rows: Sequence[Row], version: int) -> int:
    """Lag of the oldest token; 0 if there is none."""
    return int(max((version - int(row.versions.min()) for row in rows), default=0))


def admitted_groups(version: int, max_staleness: int, groups_per_step: int) -> int:
    """How many groups may have been dispatched since the start while ``version`` is current.

    The bound of AReaL (arXiv:2505.24298, section 5.1) with a group as its unit: what is under way is never more than
    the steps to come may use before it is ``max_staleness`` versions old.
    """
    return (version + max_staleness + 1) * groups_per_step
