"""The held-out rewards of a job as a table, which fits the width of the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.evaluation.request import SAMPLINGS
from lightningbus.store.reports.interval import format_mean

UNBOUNDED = 10_000
"""Columns of a terminal that is wide enough for any table."""
Key = tuple[str, int, str, str]
"""Model, its version, versions of prompts, and evaluation."""


class EvaluationsTable:
    """Held-out rewards: a row for each weight version and versions of optimised prompts, a column for each evaluation.

    Where that is too wide, it has a row for each version and evaluation.
    """

    def __init__(self, evaluations: Sequence[Evaluation], models: Mapping[str, Any], main: str) -> None:
        """Format the cells: the mean reward, and pass@k where tasks have several answers.

        ``models``: with several, each has rows with the reward that it is trained on. ``main``: the model of
        ``evaluations``.
        """
        cells: dict[Key, str] = {
            (main, each.version, _format_prompts(each), label): cell
            for each in evaluations
            for label, cell in _format_cells(each).items()
        }
        self._has_models = len(models) > 1
        for model, figures in models.items() if self._has_models else ():
            for each in figures.get("evaluations", ()) if model != main else ():
                mean = format_mean(each["mean_reward"], each["standard_error"], each.get("interval"))
                cells[model, each["version"], "", each["label"]] = mean
        self._has_prompts = any(each.prompt_versions for each in evaluations)
        labels = {label: None for *_, label in cells}
        self._labels = [
            *(each for each in SAMPLINGS if each in labels),
            *(each for each in labels if each not in SAMPLINGS),
        ]
        order = sorted(cells, key=lambda key: (key[0] != main, key[:3], self._labels.index(key[3])))
        self._cells = {key: cells[key] for key in order}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table with a column for each evaluation if it fits, else the one with a row for each."""
        wide = self._build_wide()
        width = Measurement.get(console, options.update(max_width=UNBOUNDED), wide).maximum
        yield wide if width <= options.max_width else self._build_long()

    def _build_wide(self) -> Table:
        table = self._start_table()
        for label in self._labels:
            table.add_column(label, justify="right", no_wrap=True)
        for row in dict.fromkeys(key[:3] for key in self._cells):
            table.add_row(*self._format_row(*row), *(self._cells.get((*row, label), "") for label in self._labels))
        return table

    def _build_long(self) -> Table:
        table = self._start_table()
        table.add_column("evaluation", overflow="fold")
        table.add_column("reward", justify="right", no_wrap=True)
        for (model, version, prompts, label), cell in self._cells.items():
            table.add_row(*self._format_row(model, version, prompts), label, cell)
        return table

    def _start_table(self) -> Table:
        table = Table(title="held-out reward (95 % interval)", title_style="bold", box=None, header_style="bold")
        if self._has_models:
            table.add_column("model")
        table.add_column("version", justify="right", no_wrap=True)
        if self._has_prompts:
            table.add_column("prompts", justify="right", overflow="fold")
        return table

    def _format_row(self, model: str, version: int, prompts: str) -> list[str]:
        return [*([model] if self._has_models else []), str(version), *([prompts] if self._has_prompts else [])]


def _format_cells(evaluation: Evaluation) -> dict[str, str]:
    """Format the mean reward and, where tasks have several answers, pass@k of the largest k; by column."""
    cells = {evaluation.label: evaluation.format_mean()}
    k = max(evaluation.pass_at, default=1)
    if k > 1:
        cells[f"{evaluation.label} pass@{k}"] = str(evaluation.pass_at[k])
    return cells


def _format_prompts(evaluation: Evaluation) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(evaluation.prompt_versions.items()))
