"""A run's points, as ClickHouse has them: metrics of steps, rewards of versions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.trackers.base import Axis

STEPS = "SELECT step, metrics FROM training_steps WHERE run_id = {run_id:String} AND step > {after:Int64} ORDER BY step"
REWARDS = """
SELECT mode, evaluation, version, rollouts, mean_reward, reward_spread, standard_error FROM reward_by_version
WHERE run_id = {run_id:String} ORDER BY version, mode, evaluation
"""
UNFINISHED = "SELECT DISTINCT mode, evaluation FROM check_unfinished_rollouts WHERE run_id = {run_id:String}"
NEWEST = "SELECT max(version) FROM training_steps WHERE run_id = {run_id:String}"
STEP_KEY = "step/"
"""Begins the key of a step's point."""
COLUMNS = ("rollouts", "mean_reward", "reward_spread", "standard_error")


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics at one step or version; ``key`` names the point within its run."""

    key: str
    axis: Axis
    position: int
    metrics: Mapping[str, float]


class PointReader:
    """Reads the points of a run that change no more."""

    def __init__(self, run: str, max_staleness: int) -> None:
        self._parameters: dict[str, Any] = {"run_id": run}
        self._max_staleness = max_staleness
        self._counts: dict[str, int] = {}
        """Rollouts of each series and version at the last look."""

    def read(self, client: Client, *, is_over: bool, last_step: int = -1) -> Iterator[Point]:
        """Points that are final by now; ``is_over``: no rollout of training is still to come.

        Of steps, those after ``last_step``; once the run is over, all.

        Rewards of a version are final when no rollout of it can be under way, and their number was the same at the last
        look.
        """
        rows = self._query(client, STEPS, after=-1 if is_over else last_step)
        yield from (Point(f"{STEP_KEY}{step}", "step", step, metrics) for step, metrics in rows)
        unfinished = {(mode, evaluation) for mode, evaluation in self._query(client, UNFINISHED)}
        ((newest,),) = self._query(client, NEWEST)
        for mode, evaluation, version, *values in self._query(client, REWARDS):
            series = "/".join(filter(None, ("reward_by_version", mode, evaluation)))
            key = f"{series}/{version}"
            num_before, self._counts[key] = self._counts.get(key), values[0]
            is_final = (
                is_over or version + self._max_staleness + 1 < newest
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

    def _query(self, client: Client, statement: str, **parameters: Any) -> Any:
        return client.query(statement, parameters=self._parameters | parameters).result_rows
