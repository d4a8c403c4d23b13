"""Pictures: reward over weight versions, and reports."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.store.reports import Plot, ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR_INCHES = 0.2
MAX_NAME = 40
"""Most characters of a name beside its bars."""

MARKERS = ("D", "o", "s", "^", "v")
"""Marks of the evaluations in a picture, one after the other."""

Points = tuple[Sequence[int], Sequence[float], Sequence[float]]
"""Versions, mean rewards and their standard errors, each as long as the other."""


def plot_rewards(path: Path, title: str, training: Points, held_out: Sequence[Evaluation]) -> None:
    """Write a PNG of the rewards of training and of held-out tasks by version, each evaluation by its label."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    evaluations = {label: _collect_points(held_out, label) for label in {each.label for each in held_out}}
    draw_curves(axes, {"training": training}, evaluations)
    axes.set(title=title, xlabel="weight version", ylabel="mean reward ± standard error")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    rewards = [*training[1], *(evaluation.mean_reward for evaluation in held_out)]
    if all(0 <= reward <= 1 for reward in rewards):
        axes.set_ylim(-0.04, 1.04)
    figure.savefig(path, dpi=150)


def draw_curves(axes: Any, training: Mapping[str, Points], evaluations: Mapping[str, Points]) -> None:
    """Draw rewards by version on Matplotlib's axes: training as lines in bands, evaluations as marks with bars.

    Bands and bars are a standard error to each side. Both maps are by label. Evaluations come in the order of their
    labels, so each has the same mark and colour in every picture of a run.
    """
    for label, (versions, means, errors) in training.items():
        low, high = ([mean + sign * error for mean, error in zip(means, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(versions, low, high, alpha=0.2, linewidth=0)
        axes.plot(versions, means, label=label, marker="." if len(versions) == 1 else None)
    for number, (label, points) in enumerate(sorted(evaluations.items())):
        axes.errorbar(*points, fmt=MARKERS[number % len(MARKERS)], capsize=3, label=label, zorder=3)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _collect_points(held_out: Sequence[Evaluation], label: str) -> Points:
    labelled = [each for each in held_out if each.label == label]
    return (
        [each.version for each in labelled],
        [each.mean_reward for each in labelled],
        [each.standard_error or 0.0 for each in labelled],
    )


def plot_report(path: Path, title: str, plot: Plot, answer: ResultTable) -> None:
    """Write a PNG of a report; raises `UserError` when there is nothing to draw or nowhere to write it."""
    columns, records = answer
    rows = [dict(zip(columns, row, strict=True)) for row in records]
    if not rows:
        raise UserError(f"{title}: nothing to draw yet")
    figure = draw_report(title, plot, rows)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def draw_report(title: str, plot: Plot, rows: list[dict[str, Any]]) -> "Figure":
    """Draw the rows of a report: lines, marks for evaluations, or a bar for each series and value."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    series = _series(rows, plot)
    names = list(dict.fromkeys(str(row[plot.x]) for row in rows))
    num_bars = len(series) * (1 if plot.stacked else len(plot.y))
    height = 4.5 if plot.kind == "line" else 1.5 + BAR_INCHES * len(names) * (num_bars + 1)
    figure = Figure(figsize=(8, min(max(height, 3.0), 60.0)), layout="constrained")
    axes = figure.subplots()
    for number, (label, points) in enumerate(series):
        for index, y in enumerate(plot.y):
            drawn = [row for row in points if row[y] is not None]
            named = " ".join(filter(None, [label, y.replace("_", " ") if len(plot.y) > 1 else ""]))
            if plot.kind == "line":
                _line(axes, drawn, plot, y, named)
            else:
                slot = number if plot.stacked else number * len(plot.y) + index
                _bars(axes, drawn, plot, index, names, named, slot, num_bars)
    what = ", ".join(plot.y) if len(plot.y) < 3 else ""
    value, key = (axes.set_ylabel, axes.set_xlabel) if plot.kind == "line" else (axes.set_xlabel, axes.set_ylabel)
    value(what.replace("_", " "))
    key(plot.x.replace("_", " "))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if plot.kind == "line" and all(isinstance(row[plot.x], int) for row in rows):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if plot.kind == "bar":
        axes.set_yticks(range(len(names)), [shorten(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure


def shorten(name: str) -> str:
    """Shorten a long name to its two ends, so that bars have room."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME // 2]}…{name[1 - MAX_NAME // 2 :]}"


def _series(rows: list[dict[str, Any]], plot: Plot) -> list[tuple[str, list[dict[str, Any]]]]:
    """Group rows by series; label each series only by what differs between them."""
    varying = [name for name in plot.series if len({row[name] for row in rows}) > 1]

    def label(row: dict[str, Any]) -> str:
        return " ".join(filter(None, (str(row[name]) for name in varying)))

    return [(name, list(members)) for name, members in groupby(sorted(rows, key=label), label)]


def _line(axes: Any, rows: list[dict[str, Any]], plot: Plot, y: str, label: str) -> None:
    """Draw a line with its spread; for an evaluation draw separate marks with their errors."""
    xs, ys = [row[plot.x] for row in rows], [row[y] for row in rows]
    if rows and rows[0].get("mode") == "eval":
        low, high = _edges(rows, plot, y, plot.error)
        errors = [
            [y - edge for y, edge in zip(ys, low, strict=True)],
            [edge - y for y, edge in zip(ys, high, strict=True)],
        ]
        axes.errorbar(xs, ys, yerr=errors, fmt="D", markersize=5, capsize=3, label=label or None, zorder=3)
        return
    (line,) = axes.plot(xs, ys, label=label or None, marker="." if len(rows) < 40 else None)
    if plot.spread:
        axes.fill_between(xs, *_edges(rows, plot, y, plot.spread), color=line.get_color(), alpha=0.15, linewidth=0)


def _edges(rows: list[dict[str, Any]], plot: Plot, y: str, around: str) -> tuple[list[float], list[float]]:
    """Return the edges of an interval of half-width ``around`` about each value, clipped to the observed bounds."""
    widths = [(row[around] or 0.0) if around else 0.0 for row in rows]
    low = [row[y] - width for row, width in zip(rows, widths, strict=True)]
    high = [row[y] + width for row, width in zip(rows, widths, strict=True)]
    if not plot.bounds:
        return low, high
    worst, best = plot.bounds
    return (
        [max(edge, row[worst]) for edge, row in zip(low, rows, strict=True)],
        [min(edge, row[best]) for edge, row in zip(high, rows, strict=True)],
    )


def _bars(
    axes: Any,
    rows: list[dict[str, Any]],
    plot: Plot,
    index: int,
    names: list[str],
    label: str,
    slot: int,
    num_bars: int,
) -> None:
    """Draw a bar for each row, in its slot of the ``num_bars`` of its name; stacked ones begin where the last ended."""
    share = 0.8 / num_bars
    at = [names.index(str(row[plot.x])) + (slot - (num_bars - 1) / 2) * share for row in rows]
    left = [sum(row[y] or 0 for y in plot.y[:index]) if plot.stacked else 0 for row in rows]
    axes.barh(at, [row[plot.y[index]] for row in rows], share, left, label=label or None)
