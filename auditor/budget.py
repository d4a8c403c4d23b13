"""CPU time that may be spent. Pure; time is passed in."""


class CpuBudget:
    """A token bucket: ``rate`` seconds of CPU time a second, at most ``burst`` saved up."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._left, self._filled_at = rate, burst, burst, now

    def spend(self, seconds: float, now: float) -> None:
        """Take CPU seconds that were used; there may be a debt afterwards."""
        self._fill(now)
        self._left -= seconds

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until the debt is paid back; 0: there is none."""
        self._fill(now)
        return max(0.0, -self._left / self._rate)

    def _fill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._filled_at) * self._rate)
        self._filled_at = now
