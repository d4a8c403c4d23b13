"""The result of a training job."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.run.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training job has come to: where it lies, its figures, and every evaluation in order."""

    directory: Path
    """The run's directory, with ``results.json`` and the picture of the rewards."""
    figures: dict[str, Any]
    """The content of ``results.json``."""
    evaluations: list[Evaluation]
