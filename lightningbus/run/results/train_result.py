"""The result of a training job, and how a command shows it."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lightningbus.run.display.terminal import render_html, render_text
from lightningbus.run.evaluation.evaluation import Evaluation, describe_pass_notes
from lightningbus.run.evaluation.request import SAMPLINGS
from lightningbus.run.results.best_version import find_best
from lightningbus.run.results.reward_picture import PICTURE
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.reports.interval import format_mean

FEW_TRAINED, MAX_REASONS = 0.5, 3
"""Share of trained rollouts below which reasons are named, and the most reasons to name."""


@dataclass(frozen=True, slots=True, repr=False)
class JobResult:
    """Result of a training job: its directory, its figures, and every evaluation in order."""

    directory: Path
    """The run's directory, with ``results.json`` and the picture of the rewards."""
    figures: dict[str, Any]
    """The content of ``results.json``, see `lightningbus.run.results.results.Results`."""
    evaluations: list[Evaluation]

    @property
    def best_version(self) -> int | None:
        """Weight version of the main model with the highest held-out reward, see `find_best`; None: none."""
        best = find_best(self.evaluations, self.figures.get("best_by", ""))
        return None if best is None else best.version

    def render(self) -> Group:
        """Render the held-out rewards as a table, and the figures as a sentence."""
        figures = self.figures
        released = [each for each in figures.get("prompt_rounds", ()) if each["is_released"]]
        sentence = (
            f"{figures['rollouts']} rollouts, {figures['tokens_trained']} tokens trained into "
            f"{figures['weight_versions']} weight versions in {figures['seconds']:.0f} s; "
            f"{figures['rollouts_lost']} lost, {figures['rollouts_trained_twice']} trained twice; "
            f"staleness {figures['mean_staleness']} on average, {figures['max_staleness']} at most"
        )
        if figures.get("prompt_rounds"):
            sentence += f"; {len(figures['prompt_rounds'])} rounds of prompt optimisation, {len(released)} released"
        prompts = figures.get("prompts", {})
        texts = [
            Text(
                f"text of prompt {name}, version {prompt['version']}: {self.directory / prompt['file']}",
                no_wrap=True,
                overflow="ignore",
            )
            for name, prompt in prompts.items()
        ]
        if figures.get("cost") is not None:
            sentence += f"; cost {figures['cost']:.4g}"
        if figures.get("num_unpriced_calls"):
            sentence += f"; {figures['num_unpriced_calls']} external model calls have no price"
        if figures.get("stop_reason"):
            sentence += f"; training ended early: {figures['stop_reason']}"
        picture = f"picture: {self.directory / PICTURE}"
        exports = [
            Text(f"export the model: {command}", no_wrap=True, overflow="ignore")
            for command in RunDirectory(self.directory).list_export_commands()
        ]
        tables = (
            [evaluations_table(self.evaluations, figures.get("models", {}), figures.get("model", ""))]
            if self.evaluations
            else []
        )
        warnings = [Text(f"warning: {each}", "yellow") for each in find_warnings(figures)]
        notes = [Text(each, "yellow") for each in describe_pass_notes(self.evaluations)]
        return Group(*tables, *notes, Text(sentence), *warnings, Text(picture), *texts, *exports)

    def __repr__(self) -> str:
        return render_text(self.render())

    def _repr_html_(self) -> str:
        return render_html(self.render())


def report(result: JobResult) -> None:
    """Print a job's result to the terminal, and its figures as JSON to a program that reads standard output."""
    console = Console(stderr=True, highlight=False)
    console.print(result.render(), crop=False)  # a command is to be copied whole
    console.print()
    if not sys.stdout.isatty():
        print(json.dumps(result.figures), flush=True)


def find_warnings(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about a finished job, such as that few rollouts were trained on. Pure."""
    share, excluded = figures.get("share_trained"), figures.get("excluded") or {}
    if share is not None and share < FEW_TRAINED:
        often = sorted(excluded.items(), key=lambda each: -each[1])[:MAX_REASONS]
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in often)
        yield f"{share:.2%} of the training rollouts were trained on; left out: {reasons or 'nothing says why'}"


def evaluations_table(evaluations: list[Evaluation], models: Mapping[str, Any], main: str) -> Table:
    """Build a table of held-out rewards: a row for each weight version and versions of optimised prompts.

    It has a column for each way of sampling and each suite, and one for pass@k where tasks have several answers.
    ``models``: with several, each has rows with the reward that it is trained on. ``main``: the model of
    ``evaluations``.
    """
    table = Table(title="held-out reward (95 % interval)", title_style="bold", box=None, header_style="bold")
    has_prompts, has_models = any(each.prompt_versions for each in evaluations), len(models) > 1
    labels = list(dict.fromkeys([*SAMPLINGS, *(column for each in evaluations for column in _format_cells(each))]))
    for column in (*(["model"] if has_models else []), "version", *(["prompts"] if has_prompts else []), *labels):
        table.add_column(column, justify="left" if column == "model" else "right")
    means = {
        (main, each.version, _format_prompts(each), column): cell
        for each in evaluations
        for column, cell in _format_cells(each).items()
    }
    for model, figures in models.items() if has_models else ():
        for each in figures.get("evaluations", ()) if model != main else ():
            mean = format_mean(each["mean_reward"], each["standard_error"], each.get("interval"))
            means[model, each["version"], "", each["label"]] = mean
    order = sorted(means, key=lambda each: (each[0] != main, each))
    for model, version, prompts in dict.fromkeys(key[:3] for key in order):
        columns = [*([model] if has_models else []), str(version), *([prompts] if has_prompts else [])]
        table.add_row(*columns, *(means.get((model, version, prompts, label), "") for label in labels))
    return table


def _format_cells(evaluation: Evaluation) -> dict[str, str]:
    """Format the mean reward and, where tasks have several answers, pass@k of the largest k; by column."""
    cells = {evaluation.label: evaluation.format_mean()}
    k = max(evaluation.pass_at, default=1)
    if k > 1:
        cells[f"{evaluation.label} pass@{k}"] = str(evaluation.pass_at[k])
    return cells


def _format_prompts(evaluation: Evaluation) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(evaluation.prompt_versions.items()))
