"""MLflow, by its own client."""

import time
from collections.abc import Mapping

from lightningbus.common.flat_settings import flatten_settings
from lightningbus.trackers.base import Axis, TrackedRun

ID_TAG = "lightningbus.id"
MAX_PARAM_CHARS = 500
"""Longest parameter that every MLflow server accepts."""
BATCH = 100
"""Parameters of one request."""


class MlflowTracker:
    """One run of MLflow, found again by a tag."""

    def __init__(self, run: TrackedRun, *, experiment_name: str, tracking_uri: str | None = None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(tracking_uri=tracking_uri), Metric
        experiment = self._client.get_experiment_by_name(experiment_name)
        experiment_id = (
            experiment.experiment_id if experiment is not None else self._client.create_experiment(experiment_name)
        )
        earlier = self._client.search_runs([experiment_id], f"tags.`{ID_TAG}` = '{run.id}'")
        if earlier:
            self._run_id = earlier[0].info.run_id
            self._client.set_terminated(self._run_id, "RUNNING")
            return
        self._run_id = self._client.create_run(experiment_id, run_name=run.name, tags={ID_TAG: run.id}).info.run_id
        params = [Param(name, str(value)[:MAX_PARAM_CHARS]) for name, value in flatten_settings(run.config)]
        for start in range(0, len(params), BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + BATCH])

    def log(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`; a version is logged as MLflow's step of its metric."""
        now = int(time.time() * 1000)
        entities = [self._metric(name, value, now, position) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=entities)

    def flush(self) -> None:
        """See `Tracker.flush`; each call was answered by the server."""

    def close(self) -> None:
        """See `Tracker.close`."""
        self._client.set_terminated(self._run_id)
