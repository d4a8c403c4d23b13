"""Weights & Biases, by its own client."""

from collections.abc import Mapping
from typing import Any

from lightningbus.trackers.base import Axis, TrackedRun


class WandbTracker:
    """One run of Weights & Biases, continued under its id."""

    def __init__(self, run: TrackedRun, **settings: Any) -> None:
        import wandb

        self._run = wandb.init(
            id=run.id, name=run.name, config=dict(run.config), dir=str(run.directory), resume="allow",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True), **settings,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")
        for report in ("reward_by_version", "reward_by_name"):
            self._run.define_metric(f"{report}/*", step_metric="version")

    def log(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._run.log({**metrics, axis: position})

    def flush(self) -> None:
        """See `Tracker.flush`; the client's own process has the points, and keeps them in a file."""

    def close(self) -> None:
        """See `Tracker.close`."""
        self._run.finish()
