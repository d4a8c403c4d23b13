"""How far behind a token may be: what is let through, what is left out, and in which order groups are taken. Pure.

Every policy has a name in the setting ``off_policy``: ``wait`` acts when tasks are dispatched, ``ready_first`` when
groups are taken, ``drop`` and ``mask_tokens`` when a batch is made.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from learner.groups import Group
from learner.rows import NOT_TRAINED, Row


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


def admitted_groups(version: int, max_staleness: int, groups_per_step: int, publish_every: int = 1) -> int:
    """How many groups may have been dispatched since the start while step ``version`` is the one to come.

    The bound of AReaL (arXiv:2505.24298, section 5.1) with a group as its unit: what is under way is never more than
    the steps to come may use before it is ``max_staleness`` versions old. What is served is up to ``publish_every`` - 1
    steps older than what is trained.
    """
    return (version + max_staleness - (publish_every - 1) + 1) * groups_per_step


def in_dispatch_order(ready: Sequence[Group], dispatched: Iterable[str], closed: Collection[str]) -> list[Group]:
    """Of the groups that are ready, those no earlier one has to be waited for, as they were dispatched.

    ``dispatched`` are tasks in their order, ``closed`` those whose group has ended one way or the other.
    """
    at = {group.task: group for group in ready}
    order: list[Group] = []
    for task in dispatched:
        if task not in closed:
            break
        if task in at:
            order.append(at.pop(task))
    return order
