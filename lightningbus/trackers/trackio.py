"""Trackio, by its own client."""

from collections.abc import Mapping

from lightningbus.trackers.base import Axis, TrackedRun


class TrackioTracker:
    """One run of trackio, continued under its name and id."""

    def __init__(self, run: TrackedRun, *, project: str, space_id: str | None = None) -> None:
        import trackio

        self._run = trackio.init(
            project=project, name=f"{run.name}-{run.id}", space_id=space_id, config=dict(run.config), resume="allow",
            embed=False, auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def log(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        position_metric: dict[str, float] = {} if axis == "step" else {axis: position}  # trackio keeps the step itself
        self._run.log({**metrics, **position_metric}, step=position)

    def flush(self) -> None:
        """See `Tracker.flush`; the client sends in a thread of its own, and keeps what it could not send."""

    def close(self) -> None:
        """See `Tracker.close`."""
        self._run.finish()
