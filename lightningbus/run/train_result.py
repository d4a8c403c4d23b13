"""The result of a training job, and how a command shows it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lightningbus.run.evaluation import SAMPLINGS, Evaluation
from lightningbus.run.run_directory import RunDirectory
from lightningbus.run.terminal import render_html, render_text

PICTURE = "reward.png"


@dataclass(frozen=True, slots=True, repr=False)
class TrainResult:
    """What a training job has come to: where it lies, its figures, and every evaluation in order."""

    directory: Path
    """The run's directory, with ``results.json`` and the picture of the rewards."""
    figures: dict[str, Any]
    """The content of ``results.json``, see `lightningbus.run.results.Results`."""
    evaluations: list[Evaluation]

    def render(self) -> Group:
        """Held-out rewards, and the figures in a sentence."""
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
            Text(f"text of prompt {name}, version {prompt['version']}: {self.directory / prompt['file']}", no_wrap=True)
            for name, prompt in prompts.items()
        ]
        picture = f"picture: {self.directory / PICTURE}"
        command = RunDirectory(self.directory).export_command
        export = Text(f"export the model: {command}", no_wrap=True, overflow="ignore")
        return Group(evaluations_table(self.evaluations), Text(sentence), Text(picture), *texts, export)

    def __repr__(self) -> str:
        return render_text(self.render())

    def _repr_html_(self) -> str:
        return render_html(self.render())


def report(result: TrainResult) -> None:
    """Print what came of a job to the terminal, and its figures as JSON to a program that reads standard output."""
    console = Console(stderr=True, highlight=False)
    console.print(result.render())
    console.print()
    if not sys.stdout.isatty():
        print(json.dumps(result.figures), flush=True)


def evaluations_table(evaluations: list[Evaluation]) -> Table:
    """Held-out reward, one row for each weight version, and with optimised prompts for each version of them."""
    table = Table(title="held-out reward", title_style="bold", box=None, header_style="bold")
    has_prompts = any(each.prompt_versions for each in evaluations)
    for column in ("version", *(["prompts"] if has_prompts else []), *SAMPLINGS):
        table.add_column(column, justify="right")
    means = {(each.version, _format_prompts(each), each.label): each.format_mean() for each in evaluations}
    for version, prompts in dict.fromkeys((version, prompts) for version, prompts, _ in sorted(means)):
        columns = [str(version), *([prompts] if has_prompts else [])]
        table.add_row(*columns, *(means.get((version, prompts, label), "") for label in SAMPLINGS))
    return table


def _format_prompts(evaluation: Evaluation) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(evaluation.prompt_versions.items()))
