"""Which attempt of a rollout counts: one rule, by which the store and the learner always agree. Pure."""

from collections.abc import Iterable

from schemas.base import Outcome
from schemas.spans import AttemptResult

OURS: frozenset[Outcome] = frozenset({"infra", "poisoned", "cancelled"})
"""Outcomes that are not the agent's doing: tried again, and never a reward."""

RESULT, CAME_TO_NOTHING, TRIED_AGAIN = 0, 1, 2


def standing(end: AttemptResult) -> int:
    """What an attempt's end says of its rollout.

    `RESULT`: what became of it. `CAME_TO_NOTHING`: it was given up, which a replay may still better.
    `TRIED_AGAIN`: nothing, another attempt follows.
    """
    if not end.is_final:
        return TRIED_AGAIN
    return CAME_TO_NOTHING if end.outcome in OURS else RESULT


def supersedes(new: int, old: int | None) -> bool:
    """Whether an attempt that ends later in the stream takes the place of one that ended before; None: there is none.

    So the rollout is the first result in stream order; until there is one, the first word that it came to nothing.
    """
    return new != TRIED_AGAIN and (old is None or new < old)


def winner(ends: Iterable[AttemptResult]) -> int | None:
    """Place of the attempt that is the rollout, among the ends of its attempts in stream order."""
    best: tuple[int, int] | None = None
    for place, end in enumerate(ends):
        if supersedes(standing(end), best[0] if best else None):
            best = (standing(end), place)
    return best[1] if best else None
