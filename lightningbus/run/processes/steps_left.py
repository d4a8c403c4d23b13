"""Training steps that the learners of a run have left, by its checkpoints."""

from collections.abc import Iterable

from lightningbus.learner.checkpointing.checkpoint import find_last_step
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError


def check_steps_left(name: str, learners: Iterable[LearnerSettings]) -> None:
    """Raise `UserError` where the learners of the run ``name`` have made all their steps; without a learner none has.

    Their ``checkpoint_dir`` is that of the run. A learner of 0 steps publishes the model and makes none.
    """
    steps = [(find_last_step(each.checkpoint_dir) or 0, each.max_steps) for each in learners if each.max_steps]
    if steps and all(num_steps >= wanted for num_steps, wanted in steps):
        raise UserError(describe_no_steps_left(name, min(num_steps for num_steps, _ in steps)))


def describe_no_steps_left(name: str, num_steps: int) -> str:
    """Say that a run has made its steps, and how it makes more. Pure."""
    return f"run {name!r} has all its {num_steps} steps; raise learner.max_steps to go on"
