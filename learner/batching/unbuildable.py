"""Batches that cannot be built: which groups are at fault, and when it is no fault of theirs."""

from collections.abc import Callable, Sequence

from lightningbus.learner.batching.rollout_dispositions import excluded
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.training import RolloutDisposition

UNBUILDABLE = "not built"
"""Why a rollout is excluded of which no batch can be made; the error follows."""
MAX_REASON = 200
"""Characters of a reason."""
MAX_IN_A_ROW = 8
"""Batches that may fail whole before the run ends: it is no fault of single rollouts then."""


class UnbuildableBatches:
    """Counts those of which no group could be trained, since the last batch that was."""

    def __init__(self) -> None:
        self._num_batches = 0

    def add(self, error: Exception) -> None:
        """One more; raises `LearnerError` if it is one too many."""
        self._num_batches += 1
        if self._num_batches >= MAX_IN_A_ROW:
            raise LearnerError(
                f"the last {self._num_batches} batches could not be built: {type(error).__name__}: {error}; "
                "the traceback in the log says whether a setting is at fault"
            ) from error

    def end(self) -> None:
        """A batch was trained."""
        self._num_batches = 0


def find_culprits(
    build: Callable[[Sequence[RolloutGroup]], object], groups: Sequence[RolloutGroup], error: Exception
) -> dict[str, Exception]:
    """Map tasks to why no batch can be made of their group alone; all to ``error`` if one can be made of each."""
    errors: dict[str, Exception] = {}
    for group in groups:
        try:
            build([group])
        except Exception as reason:
            errors[group.task_id] = reason
    return errors or {group.task_id: error for group in groups}


def exclude_group(group: RolloutGroup, error: Exception, settings: LearnerSettings) -> list[RolloutDisposition]:
    """Dispositions of the rollouts of a group that is at fault."""
    return excluded(group.rollouts, f"{UNBUILDABLE}: {type(error).__name__}: {error}"[:MAX_REASON], settings)
