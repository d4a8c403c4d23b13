"""What the agent in one slot may ask: requests at once and per second, bytes of them, and connections."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Of the requests of one slot that are being answered: each is held, and what was read from it."""
CONNECTIONS = 2
"""For each request at once: a client keeps some for the next."""

ROUNDING = 1e-7
"""Who comes when it was told to is not sent away for the last digit of a clock."""


class TooManyChoices(ValueError):
    """A call that asks for more answers than may ever be sampled at once."""


class RateLimited(Exception):
    """A request that has to wait; the message says why, ``retry_after`` for how many seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What every slot may have; ``per_second`` None: as many as it likes."""

    max_concurrent: int = 64
    """Requests, and answers that are sampled for them."""
    requests_per_second: float | None = None


class Connection(Protocol):
    """A server's side of one; ``transport`` is None once it is closed."""

    transport: asyncio.Transport | None


@dataclass
class InFlightRequest:
    """One request being answered, and the bytes it counts for."""

    size: int
    num_choices: int = 0
    """Answers that engines sample for it."""


@dataclass
class Admission:
    """One slot's requests: a token bucket that holds one second's worth, and a count of those being answered."""

    limits: RateLimits = field(default_factory=RateLimits)
    clock: Callable[[], float] = time.monotonic
    requests: list[InFlightRequest] = field(default_factory=list)
    """Those being answered."""
    _num_kept: list[Connection] = field(default_factory=list)
    _level: float = 0.0
    """Of the bucket, at `_at`."""
    _updated_at: float = 0.0

    @contextmanager
    def request(self, size: int = 0) -> Iterator[InFlightRequest]:
        """Around answering one of so many bytes, which may be put right when they are known; raises `RateLimited`."""
        if len(self.requests) >= self.limits.max_concurrent:
            raise RateLimited(f"an agent may make {self.limits.max_concurrent} requests at once", 1)
        if sum(request.size for request in self.requests) + size > MAX_IN_FLIGHT_BYTES:
            raise RateLimited(f"an agent's requests may have {MAX_IN_FLIGHT_BYTES} bytes at once", 1)
        self._take()
        admitted = InFlightRequest(size)
        self.requests.append(admitted)
        try:
            yield admitted
        finally:
            self.requests = [request for request in self.requests if request is not admitted]

    def admit_choices(self, request: InFlightRequest, num_choices: int) -> None:
        """Count the answers that a call asks for; raises `TooManyChoices`, or `RateLimited` while others are made."""
        limit = self.limits.max_concurrent
        if num_choices > limit:
            raise TooManyChoices(
                f"the call asks for {num_choices} answers at once; max_concurrent_requests of the runner allows {limit}"
            )
        if sum(other.num_choices for other in self.requests if other is not request) + num_choices > limit:
            raise RateLimited(f"an agent may ask for {limit} answers at once", 1)
        request.num_choices = num_choices

    def allow_keepalive(self, connection: Connection) -> bool:
        """Whether it may stay open for another request."""
        if not any(kept is connection for kept in self._num_kept):
            self._num_kept = [connection for connection in self._num_kept if connection.transport is not None]
            if len(self._num_kept) >= CONNECTIONS * self.limits.max_concurrent:
                return False
            self._num_kept.append(connection)
        return True

    def _take(self) -> None:
        rate = self.limits.requests_per_second
        if rate is None:
            return
        now = self.clock()
        used = max(0.0, self._level - (now - self._updated_at) * rate)
        size = max(rate, 1.0)
        if used + 1 > size + ROUNDING:
            wait = (used + 1 - size) / rate
            raise RateLimited(f"an agent may make {rate:g} requests per second", math.ceil(wait))
        self._level, self._updated_at = used + 1, now
