"""The operations that the learner needs of a trainer. `lightningbus.learner.training.verl_trainer` has them by verl."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.transitions.sequences import TrainSequence

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ModelProbe:
    """Tokens that learner and inference engines score alike."""

    rows: Sequence[TrainSequence]
    roundings: Sequence[float]
    """Mean difference that bfloat16 makes to each row, in nats per token."""
    is_exact: bool
    """Whether the learner's log-probabilities are computed in float32, at the weights that engines hold."""


class Trainer(Protocol):
    """A model and its optimiser, in one process or as rank 0 of several.

    Calls block, so the learner makes them in one thread. On several ranks, each call on rank 0 is made on all of them.
    """

    @property
    def can_go_on(self) -> bool:
        """Whether the last `step`, which raised, has changed nothing, so that another batch may be tried."""
        ...

    def step(self, batch: Batch) -> dict[str, float]:
        """Train one step; returns metrics by the names that `lightningbus.schemas.step_metrics` declares.

        Raises `lightningbus.learner.errors.LearnerError` if training must end, and
        `lightningbus.learner.settings.own_function.OwnFunctionError` for a user's own loss.
        """
        ...

    def log_probs(self, sequences: Sequence[TrainSequence]) -> list[Floats]:
        """Return the log-probability of each token under the current weights, one ``float32[N]`` per sequence."""
        ...

    def record_reference(self, sequences: Sequence[TrainSequence]) -> None:
        """Note the log-probabilities under the current weights: those that `step` compares pairs of these with.

        Called before the first step, with the weights that the settings name.
        """
        ...

    def check_model(self) -> ModelProbe | None:
        """Raise ValueError if the model would be trained wrong; return what engines have to agree with, None: nothing.

        Called before the first step, with the weights that the settings name.
        """
        ...

    def write_weights(self, path: Path) -> None:
        """Write all weights, of the base model if there are adapters, as safetensors under Hugging Face names."""
        ...

    def adapters(self) -> tuple[dict[str, Any], float] | None:
        """Return LoRA's tensors under PEFT's names and the factor of their product; None: all weights are trained."""
        ...

    def save(self, path: Path) -> None:
        """Write everything that `load` needs to go on to the bit, into a directory that every rank can reach."""
        ...

    def begin_save(self, path: Path) -> Callable[[], None]:
        """Take the state as it is now; the call that is returned writes it as `save` does, beside later steps.

        Where there is no room for a copy of it, it is written before this returns.
        """
        ...

    def load(self, path: Path) -> None:
        """Read what `save` wrote, also with another number of ranks."""
        ...

    def run_worker(self) -> None:
        """Make every call of rank 0, on another rank, until `stop_workers`."""
        ...

    def stop_workers(self) -> None:
        """End `run_worker` on the other ranks."""
        ...
