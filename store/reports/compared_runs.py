"""The two runs of the report ``compare``, each in a store of its own: one question to each, and one table. Pure."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from lightningbus.store.reports import ResultTable

COMPARISON = "compare"
"""Name of the report."""
Side = Literal["a", "b"]
SIDES: tuple[Side, Side] = ("a", "b")
"""Parameters of the report that name a run, and its columns with their figures."""


def choose_side(arguments: Mapping[str, str], side: Side, run_id: str) -> dict[str, str]:
    """Return the arguments of a question about one run alone, ``run_id`` in its store: the other side stays empty."""
    return {**arguments, **dict.fromkeys(SIDES, ""), side: run_id}


def join_sides(a: ResultTable, b: ResultTable, names: str) -> ResultTable:
    """Join the answers about run a and about run b: a figure of each, and their difference b - a.

    The difference of standard errors is that of the difference of both means.

    Both have the columns of the report, with the same figures in the same order. ``names`` of both runs stand in the
    column ``run_id``.
    """
    columns = a[0]
    rows = []
    for of_a, of_b in zip(a[1], b[1], strict=True):
        row = dict(zip(columns, of_a, strict=True))
        row |= {"run_id": names, "b": dict(zip(b[0], of_b, strict=True))["b"]}
        combine = _add_errors if str(row["figure"]).startswith("standard error") else _subtract
        row["difference"] = combine(row["b"], row["a"])
        rows.append(tuple(row[column] for column in columns))
    return columns, rows


def describe_selection(arguments: Mapping[str, str], side: Side) -> str:
    """Describe which rollouts of a run are compared, as ``mode=eval, version_b=7``."""
    names = ("mode", "evaluation", "model", f"version_{side}")
    chosen = {"mode": "train"} | {name: arguments[name] for name in names if arguments.get(name)}
    return ", ".join(f"{name}={value}" for name, value in chosen.items())


def _add_errors(b: Any, a: Any) -> float | None:
    return None if a is None or b is None else math.hypot(a, b)


def _subtract(b: Any, a: Any) -> float | None:
    return None if a is None or b is None else b - a
