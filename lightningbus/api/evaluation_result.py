"""The result of an evaluation."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lightningbus.api.sessions.table import Table
from lightningbus.run.evaluation.evaluation import Evaluation, describe_pass_notes, format_mean

COLUMNS = ("version", "mean_reward", "standard_error", "num_tasks", "rollouts", "ok", "seconds")


@dataclass(frozen=True, slots=True, repr=False)
class EvaluationResult:
    """Mean rewards with standard errors, by the way in which tasks were answered: ``result["greedy"].mean_reward``."""

    directory: Path
    """The run's directory."""
    evaluations: dict[str, Evaluation]

    def __getitem__(self, sampling: str) -> Evaluation:
        """Return the evaluation of a sampling, ``greedy`` or ``sampled``."""
        return self.evaluations[sampling]

    def table(self) -> Table:
        """Return a row for each sampling, with pass@k and its standard error where tasks have several answers."""
        ks = sorted({k for each in self.evaluations.values() for k in each.pass_at})
        if max(ks, default=1) == 1:
            ks = []
        rows = (
            (name, *(getattr(each, column) for column in COLUMNS), *(_format_pass(each, k) for k in ks))
            for name, each in self.evaluations.items()
        )
        return Table(("sampling", *COLUMNS, *(f"pass@{k}" for k in ks)), tuple(rows), "held-out reward")

    def to_figures(self) -> dict[str, Any]:
        """Return the run's name and its evaluations, as `results.json` of a training has them."""
        evaluations = [each.model_dump(mode="json") for each in self.evaluations.values()]
        return {"run": self.directory.name, "evaluations": evaluations}

    def __repr__(self) -> str:
        return "\n".join(
            (repr(self.table()).rstrip("\n"), *describe_pass_notes(self.evaluations.values(), "pass_reward"))
        )

    def _repr_html_(self) -> str:
        notes = (f"<p>{escape(each)}</p>" for each in describe_pass_notes(self.evaluations.values(), "pass_reward"))
        return self.table()._repr_html_() + "".join(notes)


def _format_pass(evaluation: Evaluation, k: int) -> str | None:
    estimate = evaluation.pass_at.get(k)
    return None if estimate is None else format_mean(estimate.mean, estimate.standard_error)
