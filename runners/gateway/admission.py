"""Limits on the agent in one slot: requests at once and per second, their bytes, and connections."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Bytes of one slot's requests in flight; each body is kept in memory together with its parsed form."""
CONNECTIONS = 2
"""Connections per request allowed at once: a client keeps some for the next."""

ROUNDING = 1e-7
"""Tolerance in seconds: a client that retries exactly at Retry-After is not rejected by rounding."""


class TooManyChoicesError(ValueError):
    """A call that asks for more answers than may ever be sampled at once."""


class RateLimitedError(Exception):
    """A request has to wait; the message gives the reason, ``retry_after`` the seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of every slot; ``requests_per_second`` None: no limit."""

    max_concurrent: int = 64
    """Requests, and answers that are sampled for them."""
    requests_per_second: float | None = None


class AgentConnection(Protocol):
    """The server's side of an agent's connection; ``transport`` is None once it is closed."""

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
    """Requests that are being answered."""
    _num_kept: list[AgentConnection] = field(default_factory=list)
    _level: float = 0.0
    """Level of the bucket at `_updated_at`."""
    _updated_at: float = 0.0

    @contextmanager
    def request(self, size: int = 0) -> Iterator[InFlightRequest]:
        """Hold a place for one request while it is answered; raises `RateLimitedError`.

        ``size`` is in bytes; the caller may correct it on the yielded request.
        """
        if len(self.requests) >= self.limits.max_concurrent:
            raise RateLimitedError(f"an agent may make {self.limits.max_concurrent} requests at once", 1)
        if sum(request.size for request in self.requests) + size > MAX_IN_FLIGHT_BYTES:
            raise RateLimitedError(f"an agent's requests may have {MAX_IN_FLIGHT_BYTES} bytes at once", 1)
        self._take()
        admitted = InFlightRequest(size)
        self.requests.append(admitted)
        try:
            yield admitted
        finally:
            self.requests = [request for request in self.requests if request is not admitted]

    def admit_choices(self, request: InFlightRequest, num_choices: int) -> None:
        """Count the answers that a call asks for.

        Raises `TooManyChoicesError` beyond the limit, or `RateLimitedError` while others are sampled.
        """
        limit = self.limits.max_concurrent
        if num_choices > limit:
            raise TooManyChoicesError(
                f"the call asks for {num_choices} answers at once; max_concurrent_requests of the runner allows {limit}"
            )
        if sum(other.num_choices for other in self.requests if other is not request) + num_choices > limit:
            raise RateLimitedError(f"an agent may ask for {limit} answers at once", 1)
        request.num_choices = num_choices

    def allow_keepalive(self, connection: AgentConnection) -> bool:
        """Return whether a connection may stay open for another request."""
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
            raise RateLimitedError(f"an agent may make {rate:g} requests per second", math.ceil(wait))
        self._level, self._updated_at = used + 1, now
