"""The result of a training job, and how a command shows it."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from lightningbus.run.display.terminal import render_html, render_text
from lightningbus.run.evaluation.evaluation import Evaluation, describe_pass_notes
from lightningbus.run.results.best_version import find_best
from lightningbus.run.results.evaluations_table import EvaluationsTable
from lightningbus.run.results.reward_picture import PICTURE
from lightningbus.run.run_directory.directory import RunDirectory

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
            [EvaluationsTable(self.evaluations, figures.get("models", {}), figures.get("model", ""))]
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
    """Yield warnings about a finished job: its learners' alerts, and that few rollouts were trained on. Pure."""
    yield from figures.get("alerts") or []
    share, excluded = figures.get("share_trained"), figures.get("excluded") or {}
    if share is not None and share < FEW_TRAINED:
        often = sorted(excluded.items(), key=lambda each: -each[1])[:MAX_REASONS]
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in often)
        yield f"{share:.2%} of the training rollouts were trained on; left out: {reasons or 'nothing says why'}"
