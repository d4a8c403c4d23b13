"""Schedule of checkpoints: at a fixed interval, or as often as their cost allows. Pure."""

from dataclasses import dataclass


def is_worth_writing(
    training_seconds: float, cost_seconds: float, max_overhead: float, max_repeat_seconds: float
) -> bool:
    """Return whether so much training since the last checkpoint is worth the cost of the next.

    It is once the cost is at most ``max_overhead`` of the time, or once a restart would repeat ``max_repeat_seconds``.
    """
    is_cheap = cost_seconds <= max_overhead * (training_seconds + cost_seconds)
    return is_cheap or training_seconds >= max_repeat_seconds


@dataclass
class CheckpointSchedule:
    """Decides by steps, or without an ``interval`` by what the last checkpoint took; a first one is due at once."""

    sync_interval: int
    """Steps between weight versions: a checkpoint publishes its version."""
    interval: int | None
    max_overhead: float
    max_repeat_seconds: float
    cost_seconds: float = 0.0
    """Seconds that the last checkpoint took from training: the wait for it, and the CPU time beside training."""
    training_seconds: float = 0.0
    """Time in training steps since the last checkpoint."""

    def add_step(self, seconds: float) -> None:
        """Count a training step."""
        self.training_seconds += seconds

    def begin_checkpoint(self, seconds: float) -> None:
        """Note that a checkpoint of the present weights is being written, for which training waited so long."""
        self.training_seconds, self.cost_seconds = 0.0, seconds

    def end_checkpoint(self, cpu_seconds: float) -> None:
        """Note that it is written, by so much CPU time beside training."""
        self.cost_seconds += cpu_seconds

    def is_due(self, step: int, is_writing: bool) -> bool:
        """Return whether a checkpoint is due after a step; without an interval not while one is being written."""
        if self.interval is not None:
            return step % self.interval == 0
        if is_writing or step % self.sync_interval:
            return False
        return is_worth_writing(self.training_seconds, self.cost_seconds, self.max_overhead, self.max_repeat_seconds)
