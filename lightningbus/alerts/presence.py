"""Presence of somebody that should be there, as the store and the supervisor watch it. Pure; time is passed in."""

from dataclasses import dataclass


@dataclass(slots=True)
class Presence:
    """Somebody that is expected or there ``since`` a time, in seconds, and was last seen at another; None: never."""

    since: float
    seen_at: float | None = None

    def silence(self, now: float) -> float:
        """Return the seconds since the last sign of life, or since the beginning without one."""
        return now - (self.since if self.seen_at is None else self.seen_at)
