"""Waiting for what announces itself by no event: rows in ClickHouse, counters of the broker."""

import time
from collections.abc import Callable
from typing import Any


def until(look: Callable[[], Any], expected: Any, seconds: float = 60.0) -> None:
    """Look again and again until what is expected is there; says what was there instead when it never comes."""
    deadline = time.monotonic() + seconds
    while (found := look()) != expected:
        assert time.monotonic() < deadline, f"{found!r}, not {expected!r} within {seconds:g} s"
        time.sleep(0.05)
