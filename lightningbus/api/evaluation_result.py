"""The result of an evaluation."""

from dataclasses import dataclass
from pathlib import Path

from lightningbus.api.sessions.table import Table
from lightningbus.run.evaluation.evaluation import Evaluation

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
        """Return a row for each sampling."""
        rows = ((name, *(getattr(each, column) for column in COLUMNS)) for name, each in self.evaluations.items())
        return Table(("sampling", *COLUMNS), tuple(rows), "held-out reward")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
