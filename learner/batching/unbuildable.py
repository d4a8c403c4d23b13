"""Batches that cannot be built: finds the groups at fault, and ends the run if no group is."""

from collections.abc import Callable, Sequence

from lightningbus.learner.batching.rollout_dispositions import excluded
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.training import RolloutDisposition

UNBUILDABLE = "not built"
"""Reason for excluding a rollout that no batch can be built with; the error follows."""
MAX_REASON = 200
"""Most characters of a reason."""
MAX_IN_A_ROW = 8
"""Batches in a row that may fail as a whole before the run ends: single rollouts are not at fault then."""


class UnbuildableBatches:
    """Counts batches of which no group could be trained, since the last trained batch."""

    def __init__(self) -> None:
        self._num_batches = 0

    def add(self, error: Exception) -> None:
        """Count a batch; raises `LearnerError` if it is one too many in a row."""
        self._num_batches += 1
        if self._num_batches >= MAX_IN_A_ROW:
            raise LearnerError(
                f"the last {self._num_batches} batches could not be built: {type(error).__name__}: {error}; "
                "the traceback in the log says whether a setting is at fault"
            ) from error

    def end(self) -> None:
        """Reset the count, because a batch was trained."""
        self._num_batches = 0


def find_culprits(
    build: Callable[[Sequence[RolloutGroup]], object], groups: Sequence[RolloutGroup], error: Exception
) -> dict[str, Exception]:
    """Map each task to the error of building its group alone; map all to ``error`` if each group can be built alone."""
    errors: dict[str, Exception] = {}
    for group in groups:
        try:
            build([group])
        except Exception as reason:
            errors[group.task_id] = reason
    return errors or {group.task_id: error for group in groups}


def exclude_group(group: RolloutGroup, error: Exception, settings: LearnerSettings) -> list[RolloutDisposition]:
    """Build the dispositions of a group that is at fault."""
    return excluded(group.rollouts, f"{UNBUILDABLE}: {type(error).__name__}: {error}"[:MAX_REASON], settings)
