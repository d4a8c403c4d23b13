"""Points of a reward curve that hold too few rollouts to stand alone. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import add
from statistics import median
from typing import Any

THIN_SHARE = 0.25
"""A point with a smaller share of the usual number of rollouts is taken together with the one before it."""

PICKED: dict[str, Callable[[Any, Any], Any]] = {"worst": min, "best": max, "is_success_rate": min, "tasks": add}
"""Columns beside the means, and how two neighbours become one."""

QueryRow = dict[str, Any]


def merge_thin_points(rows: Iterable[QueryRow]) -> list[QueryRow]:
    """Merge training points of few rollouts into the point before them; rows are those of one curve after another.

    A row has ``version, rollouts, mean_reward, standard_error``, and ``model, mode, evaluation, name`` and `PICKED`
    where they are known; ``per_point`` is the number of its versions. So a last version of one rollout, which failed,
    does not make a curve fall to 0. Evaluations stay as they are.
    """
    merged: list[QueryRow] = []
    for (_, mode, _, _), group in groupby(rows, key=_curve_of):
        points = list(group)
        merged += _merge(points) if mode == "train" else points
    return merged


def _curve_of(row: QueryRow) -> tuple[str, str, str, str]:
    return row.get("model", ""), row.get("mode", "train"), row.get("evaluation", ""), row.get("name", "")


def _merge(points: Sequence[QueryRow]) -> list[QueryRow]:
    usual = median(point["rollouts"] for point in points)
    merged: list[QueryRow] = []
    for point in points:
        if merged and point["rollouts"] < THIN_SHARE * usual:
            merged[-1] = combine(merged[-1], point)
        else:
            merged.append(point)
    return merged


def combine(first: Mapping[str, Any], second: Mapping[str, Any]) -> QueryRow:
    """Combine two neighbours into one point, means weighed by their rollouts; ``per_point`` spans both."""
    weights = (first["rollouts"], second["rollouts"])
    total = sum(weights)
    means = (first["mean_reward"], second["mean_reward"])
    errors = [(weight, row["standard_error"]) for weight, row in zip(weights, (first, second), strict=True)]
    known = [(weight, error) for weight, error in errors if error is not None]
    return {
        **first,
        "per_point": second["version"] + second.get("per_point", 1) - first["version"],
        "rollouts": total,
        "mean_reward": sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / total,
        "standard_error": (
            math.sqrt(sum((weight * error) ** 2 for weight, error in known)) / sum(weight for weight, _ in known)
            if known
            else None
        ),
        **{name: pick(first[name], second[name]) for name, pick in PICKED.items() if name in first},
    }
