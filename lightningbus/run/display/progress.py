"""Progress of training: steps done, speed, and time left. Pure; time is an argument."""

from collections.abc import Mapping, Sequence

BARS = "▁▂▃▄▅▆▇█"
MIN_WINDOW = 4
"""Smallest number of steps to measure the speed over, once there are as many."""


class StepProgress:
    """Times at which training steps ended."""

    def __init__(self) -> None:
        self.step = self.num_steps = 0
        self._ends: list[tuple[int, float]] = []
        """Steps, each with the time in seconds when it was first seen; the first entry is the start of watching."""

    def record(self, step: int, num_steps: int, now: float) -> None:
        """Record that ``step`` of ``num_steps`` is done at ``now``, in seconds; a lower step starts over."""
        if step < self.step:
            self._ends = []
        if not self._ends or step > self.step:
            self._ends.append((step, now))
        self.step, self.num_steps = step, num_steps

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds per step over the last half of the steps, without the first partial one; None: not known yet."""
        ends = self._ends[1:] if len(self._ends) > 2 else self._ends
        if len(ends) < 2:
            return None
        recent = ends[-1 - max(MIN_WINDOW, len(ends) // 2) :]
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])

    @property
    def steps_per_hour(self) -> float | None:
        """Steps per hour; None: not known yet."""
        seconds = self.seconds_per_step
        return 3600 / seconds if seconds else None

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until the last step has ended; None: not known yet."""
        seconds = self.seconds_per_step
        if seconds is None:
            return None
        running = min(now - self._ends[-1][1], seconds)
        return max(0.0, (self.num_steps - self.step) * seconds - running)

    def describe(self, now: float) -> str:
        """Describe step, speed and time left; empty before training."""
        if not self.num_steps:
            return ""
        parts = [f"step {self.step} of {self.num_steps}"]
        if (speed := self.steps_per_hour) is not None:
            parts.append(f"{speed:,.0f} steps/h" if speed >= 10 else f"{speed:.1f} steps/h")
        if (left := self.seconds_left(now)) is not None and self.step < self.num_steps:
            parts.append(f"{format_duration(left)} left")
        return ", ".join(parts)


def slowest_first(progress_by_model: Mapping[str, StepProgress], now: float) -> list[tuple[str, StepProgress]]:
    """Sort the learners of a run by time left, the longest first: that one shows how far the run is."""

    def rank(item: tuple[str, StepProgress]) -> tuple[float, float, str]:
        model, progress = item
        left = progress.seconds_left(now)
        return -(left if left is not None else float("inf")), progress.step / max(progress.num_steps, 1), model

    return sorted(((model, item) for model, item in progress_by_model.items() if item.num_steps), key=rank)


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units, such as ``2 h 05 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw the last ``width`` values as a line of small bars, from the smallest to the largest of them."""
    recent = list(values)[-width:]
    low, high = min(recent, default=0.0), max(recent, default=0.0)
    if high == low:
        return BARS[len(BARS) // 2] * len(recent)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in recent)


def format_reward(value: float) -> str:
    """Format a reward of any scale in three significant digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
