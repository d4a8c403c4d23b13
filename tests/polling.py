"""Waiting for what announces itself by no event: rows in ClickHouse, counters of the broker, a cluster's leader."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lightningbus.bus.connection import NO_LEADER_ERRORS

T = TypeVar("T")

HANG_SECONDS = 240.0
"""What takes longer hangs: many times what a quiet machine takes, so that a busy one is not taken for a fault."""


def until(look: Callable[[], Any], expected: Any, seconds: float = HANG_SECONDS) -> None:
    """Look again and again until what is expected is there; says what was there instead when it never comes."""
    deadline = time.monotonic() + seconds
    while (actual := look()) != expected:
        assert time.monotonic() < deadline, f"{actual!r}, not {expected!r} within {seconds:g} s"
        time.sleep(0.05)


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask JetStream until it answers: a cluster that elects a leader has no answer for a while."""
    while True:
        try:
            return await ask()
        except NO_LEADER_ERRORS:
            await asyncio.sleep(0.2)
