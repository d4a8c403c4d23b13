"""Bound of groups by staleness: how many may be dispatched and untrained, by the progress of training and sampling."""

from collections.abc import Callable

from lightningbus.learner.dispatch.pacing import Pace, num_admitted_groups
from lightningbus.learner.settings.learner import LearnerSettings


class StalenessBound:
    """The staleness bound of the settings."""

    def __init__(self, settings: LearnerSettings, served_version: Callable[[], int | None]) -> None:
        """Prepare the bound; ``served_version`` returns the oldest version that nodes serve, None without nodes."""
        self._settings, self._served_version = settings, served_version
        self.step = self.version = 0
        """Steps made, and the version being trained."""

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound."""
        return self._settings.staleness.admission == "bounded"

    @property
    def served(self) -> int:
        """The oldest version that a token sampled from now on may have."""
        served = self._served_version()
        return self.version if served is None else min(served, self.version)

    @property
    def missing_version(self) -> int | None:
        """Version that a node must serve before anything is dispatched; None: dispatching waits for no version."""
        oldest = self.version - self._settings.max_staleness
        return oldest if self.is_bounded and self.served < oldest else None

    def pace(self, served: int | None = None) -> Pace:
        """Return training's progress relative to what is, or was, ``served``."""
        served = self.served if served is None else served
        return Pace(self.version, served, self._settings.max_staleness, self._settings.groups_per_step)

    def num_groups(self, served: int | None = None) -> int:
        """Count the groups that may be dispatched and untrained while nodes serve ``served`` or an older version."""
        num_left = (self._settings.max_steps - self.step) * self._settings.groups_per_step
        return min(num_left, num_admitted_groups(self.pace(served))) if self.is_bounded else num_left
