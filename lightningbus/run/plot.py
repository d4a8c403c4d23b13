"""Pictures: reward over weight versions, and reports."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from lightningbus.run.evaluation import Evaluation
from lightningbus.run.role_process import UserError
from store.reports import Plot, ResultTable

Point = tuple[int, float, float, int]
"""Version, mean reward, spread, rollouts."""


def plot_rewards(path: Path, title: str, training: Sequence[Point], held_out: Sequence[Evaluation]) -> None:
    """Write a PNG: training reward by version as a line, held-out reward as marks, both with standard errors."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    versions = [point[0] for point in training]
    means = [point[1] for point in training]
    errors = [point[2] / max(point[3], 1) ** 0.5 for point in training]
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    axes.fill_between(versions, low, high, color="tab:blue", alpha=0.2, linewidth=0)
    axes.plot(versions, means, color="tab:blue", label="training rollouts, sampled (± standard error)")
    for label, mark, color in (("greedy", "D", "tab:orange"), ("sampled", "o", "tab:green")):
        evaluations = [evaluation for evaluation in held_out if evaluation.label == label]
        axes.errorbar(
            [evaluation.version for evaluation in evaluations],
            [evaluation.accuracy for evaluation in evaluations],
            yerr=[evaluation.standard_error or 0.0 for evaluation in evaluations],
            fmt=mark,
            color=color,
            markersize=7,
            capsize=3,
            label=f"held-out problems, {label}",
            zorder=3,
        )
    axes.set(title=title, xlabel="weight version", ylabel="mean reward")
    rewards = [*means, *(evaluation.accuracy for evaluation in held_out)]
    if all(0 <= reward <= 1 for reward in rewards):
        axes.set_ylim(-0.04, 1.04)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def plot_report(path: Path, title: str, plot: Plot, answer: ResultTable) -> None:
    """Write a PNG of a report; raises `UserError` when there is nothing to draw or nowhere to write it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns, records = answer
    rows = [dict(zip(columns, row, strict=True)) for row in records]
    if not rows:
        raise UserError(f"{title}: nothing to draw yet")
    names = list(dict.fromkeys(str(row[plot.x]) for row in rows))
    height = 4.5 if plot.kind == "line" else 1.5 + 0.3 * len(names) * (1 if plot.stacked else len(plot.y))
    figure, axes = pyplot.subplots(figsize=(8, min(max(height, 3.0), 14.0)), layout="constrained")
    for label, points in _series(rows, plot):
        for index, y in enumerate(plot.y):
            drawn = [row for row in points if row[y] is not None]
            named = " ".join(filter(None, [label, y.replace("_", " ") if len(plot.y) > 1 else ""]))
            if plot.kind == "line":
                _line(axes, drawn, plot, y, named)
            else:
                _bars(axes, drawn, plot, index, names, named)
    what = ", ".join(plot.y) if len(plot.y) < 3 else ""
    value, key = (axes.set_ylabel, axes.set_xlabel) if plot.kind == "line" else (axes.set_xlabel, axes.set_ylabel)
    value(what.replace("_", " "))
    key(plot.x.replace("_", " "))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be written: {error}") from error
    finally:
        pyplot.close(figure)


def _series(rows: list[dict[str, Any]], plot: Plot) -> list[tuple[str, list[dict[str, Any]]]]:
    """Rows by series; what is the same in all of them is not said."""
    varying = [name for name in plot.series if len({row[name] for row in rows}) > 1]

    def label(row: dict[str, Any]) -> str:
        return " ".join(filter(None, (str(row[name]) for name in varying)))

    return [(name, list(members)) for name, members in groupby(sorted(rows, key=label), label)]


def _line(axes: Any, rows: list[dict[str, Any]], plot: Plot, y: str, label: str) -> None:
    xs, ys = [row[plot.x] for row in rows], [row[y] for row in rows]
    (line,) = axes.plot(xs, ys, label=label or None, marker="." if len(rows) < 40 else None)
    if plot.spread:
        low, high = ([value + sign * row[plot.spread] for value, row in zip(ys, rows, strict=True)] for sign in (-1, 1))
        axes.fill_between(xs, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def _bars(axes: Any, rows: list[dict[str, Any]], plot: Plot, index: int, names: list[str], label: str) -> None:
    share = 0.8 if plot.stacked else 0.8 / len(plot.y)
    at = [
        names.index(str(row[plot.x])) + (0 if plot.stacked else (index - (len(plot.y) - 1) / 2) * share) for row in rows
    ]
    left = [sum(row[y] for y in plot.y[:index]) if plot.stacked else 0 for row in rows]
    axes.barh(at, [row[plot.y[index]] for row in rows], share, left, label=label or None)
    axes.set_yticks(range(len(names)), [name[:48] for name in names])
    axes.invert_yaxis() if not axes.yaxis_inverted() else None
