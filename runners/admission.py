"""How many requests the agent in one slot may make: at once, and per second."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class TooMany(Exception):
    """A request that has to wait; the message says why, ``retry_after`` for how many seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Allowance:
    """What every slot may have; ``per_second`` None: as many as it likes."""

    at_once: int = 64
    per_second: float | None = None


@dataclass
class Admission:
    """One slot's requests: a token bucket that holds one second's worth, and a count of those being answered."""

    allowance: Allowance = field(default_factory=Allowance)
    clock: Callable[[], float] = time.monotonic
    held: int = 0
    _used: float = 0.0
    """Of the bucket, at `_at`."""
    _at: float = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around answering one; raises `TooMany`."""
        if self.held >= self.allowance.at_once:
            raise TooMany(f"an agent may make {self.allowance.at_once} requests at once", 1)
        self._take()
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1

    def _take(self) -> None:
        rate = self.allowance.per_second
        if rate is None:
            return
        now = self.clock()
        used = max(0.0, self._used - (now - self._at) * rate)
        size = max(rate, 1.0)
        if used + 1 > size:
            wait = (used + 1 - size) / rate
            raise TooMany(f"an agent may make {rate:g} requests per second", math.ceil(wait))
        self._used, self._at = used + 1, now
