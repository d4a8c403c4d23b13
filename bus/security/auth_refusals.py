"""Grace period for rejected connections before they are given up. Pure: times in, a decision out."""

from dataclasses import dataclass


@dataclass(slots=True)
class AuthRefusals:
    """Refusals of one connection; ``bound`` and ``pause`` are seconds."""

    bound: float
    """After so long without a connection it is given up."""
    pause: float
    """After so long without a refusal the next one is the first again: the server was away, and may be another."""
    _first: float | None = None
    _last: float = 0.0

    def record(self, now: float) -> bool:
        """Record a rejection; return whether they have lasted longer than the bound."""
        if self._first is None or now - self._last > self.pause:
            self._first = now
        self._last = now
        return now - self._first >= self.bound

    def clear(self) -> None:
        """Forget earlier rejections, after a successful connection."""
        self._first = None
