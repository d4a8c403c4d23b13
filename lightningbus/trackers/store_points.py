"""A run's points, as ClickHouse has them: metrics of steps, rewards of versions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.schemas.subjects import DEFAULT_POLICY
from lightningbus.trackers.base import Axis

STEPS = """
SELECT model, step, metrics FROM training_steps
WHERE run_id = {run_id:String} AND step > {after:Int64} ORDER BY step, model
"""
REWARDS = """
SELECT model, mode, evaluation, version, rollouts, mean_reward, reward_spread, standard_error FROM reward_by_version
WHERE run_id = {run_id:String} ORDER BY model, version, mode, evaluation
"""
UNFINISHED = "SELECT DISTINCT mode, evaluation FROM check_unfinished_rollouts WHERE run_id = {run_id:String}"
NEWEST = "SELECT model, max(version) FROM training_steps WHERE run_id = {run_id:String} GROUP BY model"
STEP_KEY = "step/"
"""Begins the key of a step's point; the model follows where a run trains several, then the step."""
COLUMNS = ("rollouts", "mean_reward", "reward_spread", "standard_error")


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics at one step or version; ``key`` names the point within its run."""

    key: str
    axis: Axis
    position: int
    metrics: Mapping[str, float]


def model_of_step(key: str) -> tuple[str, int]:
    """Split a step's key into its model, empty where a run trains one only, and step number. Pure."""
    model, _, step = key.removeprefix(STEP_KEY).rpartition("/")
    return model, int(step)


class PointReader:
    """Reads the points of a run that change no more."""

    def __init__(self, run: str, max_staleness: int, models: Sequence[str] = (DEFAULT_POLICY,)) -> None:
        """Prepare to read the points of ``models``; with several of them, series are named with the model."""
        self._parameters: dict[str, Any] = {"run_id": run}
        self._max_staleness, self._models = max_staleness, models
        self._counts: dict[str, int] = {}
        """Rollouts of each series and version at the last read."""

    def read(
        self, client: Client, *, is_over: bool, last_steps: Mapping[str, int] = MappingProxyType({})
    ) -> Iterator[Point]:
        """Yield the points that are final by now; ``is_over``: no training rollout is still to come.

        Steps are those after the smallest of ``last_steps``, by model as of `model_of_step`; once the run is over, all.

        Rewards of a version are final when no rollout of it can be under way, and their number was the same at the last
        read.
        """
        last = min(last_steps.get(self._name_of(model), -1) for model in self._models)
        for model, step, metrics in self._query(client, STEPS, after=-1 if is_over else last):
            name = self._name_of(model)
            named = {f"{name}/{metric}": value for metric, value in metrics.items()} if name else metrics
            yield Point(STEP_KEY + "/".join(filter(None, (name, str(step)))), "step", step, named)
        unfinished = {(mode, evaluation) for mode, evaluation in self._query(client, UNFINISHED)}
        newest = dict(self._query(client, NEWEST))
        for model, mode, evaluation, version, *values in self._query(client, REWARDS):
            if model not in self._models:
                continue
            series = "/".join(filter(None, ("reward_by_version", self._name_of(model), mode, evaluation)))
            key = f"{series}/{version}"
            num_before, self._counts[key] = self._counts.get(key), values[0]
            is_final = (
                is_over or version + self._max_staleness + 1 < newest.get(model, 0)
                if mode == "train"
                else (mode, evaluation) not in unfinished
            )
            if is_final and num_before == values[0]:
                metrics = {
                    f"{series}/{name}": float(value)
                    for name, value in zip(COLUMNS, values, strict=True)
                    if value is not None
                }
                yield Point(key, "version", version, metrics)

    def _name_of(self, model: str) -> str:
        """Return the model for names of series; empty where the run trains one only."""
        return model if len(self._models) > 1 else ""

    def _query(self, client: Client, statement: str, **parameters: Any) -> Any:
        return client.query(statement, parameters=self._parameters | parameters).result_rows
