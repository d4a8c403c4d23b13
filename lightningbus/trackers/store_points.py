"""A run's points, as ClickHouse has them: metrics of steps, rewards of versions."""

import re
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
NAMED_REWARDS = """
SELECT model, mode, evaluation, name, version, rollouts, mean_reward, standard_error FROM reward_by_name
WHERE run_id = {run_id:String} ORDER BY model, version, mode, evaluation, name
"""
UNFINISHED = "SELECT DISTINCT mode, evaluation FROM check_unfinished_rollouts WHERE run_id = {run_id:String}"
NEWEST = "SELECT model, max(version) FROM training_steps WHERE run_id = {run_id:String} GROUP BY model"
STEP_KEY = "step/"
"""Begins the key of a step's point; the model follows where a run trains several, then the step."""
COLUMNS = ("rollouts", "mean_reward", "reward_spread", "standard_error")
NAMED_COLUMNS = ("rollouts", "mean_reward", "standard_error")
OTHER_CHARACTER = re.compile(r"[^\w\-. :]")
"""Characters of a reward's name that some tracker refuses in a metric's."""


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
        for series, (model, mode, evaluation, version), values in self._read_rewards(client):
            if model not in self._models:
                continue
            key, num_rollouts = f"{series}/{version}", values["rollouts"]
            num_before, self._counts[key] = self._counts.get(key), num_rollouts
            is_final = (
                is_over or version + self._max_staleness + 1 < newest.get(model, 0)
                if mode == "train"
                else (mode, evaluation) not in unfinished
            )
            if is_final and num_before == num_rollouts:
                metrics = {f"{series}/{name}": float(value) for name, value in values.items() if value is not None}
                yield Point(key, "version", version, metrics)

    def _read_rewards(self, client: Client) -> Iterator[tuple[str, tuple[str, str, str, int], dict[str, Any]]]:
        """Yield the series, the model, mode, evaluation and version, and the values of each reward and named reward."""
        for model, mode, evaluation, version, *values in self._query(client, REWARDS):
            series = self._name_series("reward_by_version", model, mode, evaluation)
            yield series, (model, mode, evaluation, version), dict(zip(COLUMNS, values, strict=True))
        for model, mode, evaluation, name, version, *values in self._query(client, NAMED_REWARDS):
            series = self._name_series("reward_by_name", model, mode, evaluation, OTHER_CHARACTER.sub("_", name))
            yield series, (model, mode, evaluation, version), dict(zip(NAMED_COLUMNS, values, strict=True))

    def _name_series(self, report: str, model: str, *names: str) -> str:
        return "/".join(filter(None, (report, self._name_of(model), *names)))

    def _name_of(self, model: str) -> str:
        """Return the model for names of series; empty where the run trains one only."""
        return model if len(self._models) > 1 else ""

    def _query(self, client: Client, statement: str, **parameters: Any) -> Any:
        return client.query(statement, parameters=self._parameters | parameters).result_rows
