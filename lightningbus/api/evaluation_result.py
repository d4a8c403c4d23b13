"""The result of an evaluation."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lightningbus.api.evaluation_table import tabulate_briefly, tabulate_evaluations
from lightningbus.api.sessions.table import Table
from lightningbus.run.evaluation.evaluation import Evaluation, describe_pass_notes


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
        return tabulate_evaluations("sampling", list(self.evaluations.items()))

    def df(self) -> Any:
        """Convert `table` to a ``pandas.DataFrame``; raises `UserError` where pandas is not installed."""
        return self.table().df()

    def to_figures(self) -> dict[str, Any]:
        """Return the run's name and its evaluations, as `results.json` of a training has them."""
        evaluations = [each.model_dump(mode="json") for each in self.evaluations.values()]
        return {"run": self.directory.name, "evaluations": evaluations}

    def __repr__(self) -> str:
        return "\n".join((repr(self._brief_table()).rstrip("\n"), *self._list_notes()))

    def _repr_html_(self) -> str:
        return self._brief_table()._repr_html_() + "".join(f"<p>{escape(each)}</p>" for each in self._list_notes())

    def _list_notes(self) -> list[str]:
        """List explanations of the rewards: rollouts of before, failed ones, ones without a call, none that passes."""
        notes = [
            f"{name}: {note}"
            for name, each in self.evaluations.items()
            for note in (each.describe_recorded(), each.failures, each.describe_without_call())
            if note
        ]
        return [*notes, *describe_pass_notes(self.evaluations.values(), "pass_reward")]

    def _brief_table(self) -> Table:
        return tabulate_briefly("sampling", list(self.evaluations.items()))
