"""Comparisons of the rollouts of a group, and rewards from them. Pure."""

from collections.abc import Mapping, Sequence

from lightningbus.graders.judges.prompts import Preference

Pair = tuple[int, int]


def choose_pairs(num_members: int, max_opponents: int) -> list[Pair]:
    """Choose who is compared with whom: each with its neighbours in a ring, so that all have as many opponents."""
    reach = max_opponents // 2
    pairs = {
        (min(index, other), max(index, other))
        for index in range(num_members)
        for other in ((index + step) % num_members for step in range(1, reach + 1))
        if other != index
    }
    return sorted(pairs)


def count_wins(pairs: Mapping[Pair, Sequence[Preference]], num_members: int) -> list[float | None]:
    """Return the share of wins of each member, a tie being half a win; None: it was not compared.

    Each pair has its preferences: one, or a second one for which it was asked in the other order. Two that contradict
    each other are a tie.
    """
    points, counts = [0.0] * num_members, [0] * num_members
    for (first, second), preferences in pairs.items():
        score = sum(map(_points_of_first, preferences, (False, True))) / len(preferences)
        share = 1.0 if score > 0.5 else 0.0 if score < 0.5 else 0.5
        points[first] += share
        points[second] += 1.0 - share
        counts[first] += 1
        counts[second] += 1
    return [point / count if count else None for point, count in zip(points, counts, strict=True)]


def _points_of_first(preference: Preference, is_swapped: bool) -> float:
    if preference == "tie":
        return 0.5
    return float((preference == "first") != is_swapped)
