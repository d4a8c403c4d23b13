"""Evaluations as rows of a table. Pure."""

from collections.abc import Sequence
from typing import Any

from lightningbus.api.sessions.table import Table
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.evaluation.pass_at_k import PassAtK

COLUMNS = ("version", "mean_reward", "standard_error", "low_95", "high_95", "num_tasks", "rollouts", "ok", "seconds")
SAMPLE = (0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0)
"""A row of which a table without evaluations has the kinds of its columns."""
TITLE = "held-out reward"


def tabulate_evaluations(name: str, evaluations: Sequence[tuple[str, Evaluation]]) -> Table:
    """Return a row of numbers for each evaluation under its label, which stands in the column ``name``.

    ``low_95`` and ``high_95`` are the bounds of the mean's 95 % confidence interval.
    Where tasks have several answers, ``pass@k`` and ``pass@k_standard_error`` follow for k = 1, 2, 4, ...
    """
    ks = _list_ks(evaluations)
    labels = [label for k in ks for label in (f"pass@{k}", f"pass@{k}_standard_error")]
    rows = (
        (*_row(label, each), *(number for k in ks for number in _split(each.pass_at.get(k))))
        for label, each in evaluations
    )
    return Table((name, *COLUMNS, *labels), tuple(rows), TITLE, sample=("", *SAMPLE))


def tabulate_briefly(name: str, evaluations: Sequence[tuple[str, Evaluation]]) -> Table:
    """Return the same rows for readers: each pass@k with its 95 % interval is one text, in one column."""
    ks = _list_ks(evaluations)
    rows = (
        (*_row(label, each), *(str(each.pass_at[k]) if k in each.pass_at else None for k in ks))
        for label, each in evaluations
    )
    return Table((name, *COLUMNS, *(f"pass@{k}" for k in ks)), tuple(rows), TITLE)


def _list_ks(evaluations: Sequence[tuple[str, Evaluation]]) -> list[int]:
    """List the k of pass@k; none where each task has a single answer."""
    ks = sorted({k for _, each in evaluations for k in each.pass_at})
    return ks if max(ks, default=1) > 1 else []


def _row(label: str, evaluation: Evaluation) -> tuple[Any, ...]:
    low, high = evaluation.interval or (None, None)
    bounds = {"low_95": low, "high_95": high}
    return (label, *(bounds[each] if each in bounds else getattr(evaluation, each) for each in COLUMNS))


def _split(estimate: PassAtK | None) -> tuple[float | None, float | None]:
    return (None, None) if estimate is None else (estimate.mean, estimate.standard_error)
