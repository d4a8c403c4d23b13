"""TensorBoard, by torch's writer of event files."""

import json
from collections.abc import Mapping
from pathlib import Path

from lightningbus.trackers.base import Axis, TrackedRun


class TensorBoardTracker:
    """Scalars in event files; ``log_dir`` may hold those of several runs."""

    def __init__(self, run: TrackedRun, *, log_dir: Path | None = None) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        directory = log_dir / run.name if log_dir is not None else run.directory / "tensorboard"
        self._writer = SummaryWriter(str(directory))
        settings = f"```json\n{json.dumps(run.config, indent=2)}\n```"
        self._writer.add_text("settings", settings, 0)

    def log(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, position)

    def flush(self) -> None:
        """See `Tracker.flush`."""
        self._writer.flush()

    def close(self) -> None:
        """See `Tracker.close`."""
        self._writer.close()
