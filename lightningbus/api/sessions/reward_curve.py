"""Reward over weight versions: of training rollouts, and of evaluations, each by itself."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.api.sessions.queries import load_table
from lightningbus.api.sessions.table import Table
from lightningbus.api.user_errors import require_package
from lightningbus.run.results.plot import Points, draw_curves
from lightningbus.run.run_data.run_names import check_reward
from lightningbus.store.reports.merged_points import merge_thin_points

TRAINING = """
SELECT model, version, rollouts, mean_reward, standard_error FROM {points}
WHERE run_id = {run_id:String} AND mode = 'train' ORDER BY model, version
"""
EVALUATIONS = """
SELECT model, evaluation, version, rollouts, mean_reward, standard_error FROM {points}
WHERE run_id = {run_id:String} AND mode = 'eval' ORDER BY model, evaluation, version
"""
NAMED_POINTS = "(SELECT * FROM reward_by_name WHERE name = {reward:String})"
FIGURE: Mapping[str, Any] = {"figsize": (7, 3.6), "layout": "constrained"}
"""Size in inches and layout of a picture."""


@dataclass(frozen=True, slots=True, repr=False)
class RewardCurve:
    """Mean reward and its standard error by weight version of each model."""

    run: str
    training: Table
    """``model, version, rollouts, mean_reward, standard_error`` of training, see the report ``reward_by_version``."""
    evaluations: Table
    """``model, evaluation, version, rollouts, mean_reward, standard_error``."""
    reward: str = ""
    """The named reward that the curve is of; empty: the reward that counts."""

    @classmethod
    def load(cls, client: Client, run: str, reward: str = "") -> "RewardCurve":
        """Read the curve of one run, or of one of its named rewards. Blocks.

        Raises `UserError` where no rollout has a reward of that name.
        """
        values = {"run_id": run, "reward": reward}
        if reward:
            check_reward(client, run, reward)
        points = NAMED_POINTS if reward else "reward_by_version"
        training, evaluations = (
            load_table(client, sql.replace("{points}", points), values, title)
            for sql, title in ((TRAINING, "training"), (EVALUATIONS, "evaluations"))
        )
        return cls(run, training, evaluations, reward)

    def df(self) -> Any:
        """Convert both tables to one ``pandas.DataFrame``, training first.

        Columns: ``model, mode, evaluation, version, rollouts, mean_reward, standard_error``. ``mode`` is ``train`` or
        ``eval``, ``evaluation`` is empty in training. Raises `UserError` where pandas is not installed.
        """
        require_package("pandas", "notebook")
        import pandas

        training = self.training.df().assign(mode="train", evaluation="")
        both = pandas.concat([training, self.evaluations.df().assign(mode="eval")], ignore_index=True)
        return both[["model", "mode", *self.evaluations.columns[1:]]]

    def plot(self, axes: Any = None) -> Any:
        """Draw it on Matplotlib's ``axes``, or on new ones; returns them.

        Versions of few training rollouts are drawn with the version before, means weighed by rollouts.
        """
        require_package("matplotlib", "notebook")
        if axes is None:
            from matplotlib import pyplot

            _, axes = pyplot.subplots(**FIGURE)  # a notebook shows it
        draw_curves(
            axes,
            {
                self._label("training", model): points
                for (model,), points in _series(merge_thin_points(map(dict, self.training)), "model")
            },
            {
                self._label(name or "evaluation", model): points
                for (model, name), points in _series(self.evaluations, "model", "evaluation")
            },
        )
        axes.set(title=self.run, xlabel="weight version", ylabel=f"mean {self.reward or 'reward'} ± standard error")
        return axes

    def _label(self, name: str, model: str) -> str:
        """Append the model to a name where there are several."""
        models = {row["model"] for table in (self.training, self.evaluations) for row in table}
        return f"{name}, {model}" if len(models) > 1 else name

    def __repr__(self) -> str:
        return f"{self.reward or 'reward'} of run {self.run}\n{self.training!r}\n{self.evaluations!r}"

    def _repr_html_(self) -> str:
        require_package("matplotlib", "notebook")
        from matplotlib.figure import Figure

        figure, image = Figure(**FIGURE), io.BytesIO()
        self.plot(figure.subplots())
        figure.savefig(image, format="png", dpi=110)
        data = base64.b64encode(image.getvalue()).decode()
        text = escape(f"{self.reward or 'reward'} of run {self.run}")
        evaluations = self.evaluations._repr_html_() if self.evaluations else ""
        return f'<img alt="{text}" src="data:image/png;base64,{data}">{evaluations}'


def _series(table: Iterable[Mapping[str, Any]], *names: str) -> Iterator[tuple[tuple[str, ...], Points]]:
    """Group rows by the columns ``names``: versions, means and standard errors, 0 where there is one task only."""
    rows_by_name: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in table:
        rows_by_name.setdefault(tuple(row[name] for name in names), []).append(row)
    for name, rows in rows_by_name.items():
        yield (
            name,
            (
                [row["version"] for row in rows],
                [row["mean_reward"] for row in rows],
                [row["standard_error"] or 0.0 for row in rows],
            ),
        )
