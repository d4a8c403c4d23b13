"""Where a learner begins: anew, or where the newest checkpoint and the bus say. Pure."""

from pathlib import Path

from msgspec.structs import replace

from learner.checkpointing.checkpoint import LearnerState
from learner.errors import LearnerError
from learner.settings.learner import LearnerSettings
from schemas.weights.events import WeightManifest


def initial_state(
    checkpoint: tuple[Path, LearnerState] | None, last: WeightManifest | None, settings: LearnerSettings
) -> LearnerState:
    """The state to begin with, under an epoch of its own; ``last`` is the newest version on the bus.

    Raises `LearnerError` when the two do not belong together.
    """
    if checkpoint is None:
        if last is not None:
            raise LearnerError(
                f"model {settings.model!r} has version {last.version} on this bus, but {settings.checkpoint_dir} "
                "holds no checkpoint to go on from: give the right checkpoints, or another model name"
            )
        return LearnerState(run_id=settings.run, model=settings.model)
    path, state = checkpoint
    if (state.run_id, state.model) != (settings.run, settings.model):
        raise LearnerError(
            f"checkpoints: {path} is of run {state.run_id!r}, model {state.model!r}, "
            f"not of run {settings.run!r}, model {settings.model!r}"
        )
    epoch = max(state.epoch, last.epoch if last else 0) + 1
    # Steps made after the checkpoint are undone: their numbers are not given again to other weights.
    version = state.version if last is None or last.version <= state.version else last.version + 1
    return replace(state, epoch=epoch, version=version)
