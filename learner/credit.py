"""How a rollout's outcome is shared among its calls: pure functions, by name."""

from collections.abc import Callable, Sequence

from learner.transitions import Row

Credit = Callable[[float, Sequence[Row]], list[float]]
"""(advantage of the rollout, its rows) -> advantage of each row."""


def identical(advantage: float, rows: Sequence[Row]) -> list[float]:
    """Every call gets the rollout's advantage: Agent Lightning (arXiv:2508.03680), section 3.2."""
    return [advantage] * len(rows)


METHODS: dict[str, Credit] = {"identical": identical}


def method(name: str) -> Credit:
    """The credit function of a name; raises ValueError naming those there are."""
    if name not in METHODS:
        raise ValueError(f"credit: {name!r} is not known; known: {', '.join(sorted(METHODS))}")
    return METHODS[name]
