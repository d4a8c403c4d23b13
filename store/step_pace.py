"""Pace of training steps, by which a step is late. Pure; time is an argument."""

from collections.abc import Mapping

SLOW_FACTOR = 3.0
"""Ratio to a learner's last step, and to the timeout where it has made none, from which a step is late."""


class StepPace:
    """Tracks how long the training steps of each model take."""

    def __init__(self) -> None:
        self._last_at: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def observe(self, last_step_at: Mapping[str, float]) -> None:
        """Record when the last step of each model ended, in seconds."""
        for model, at in last_step_at.items():
            if at > self._last_at.get(model, at):
                self._seconds[model] = at - self._last_at[model]
            self._last_at[model] = at

    def find_limit(self, model: str, timeout_seconds: float) -> float:
        """Return the seconds that a step may take: the first ones load and compile, and large models are slow."""
        return SLOW_FACTOR * self._seconds.get(model, timeout_seconds)
