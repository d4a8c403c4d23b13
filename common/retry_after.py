"""The header Retry-After of an endpoint that is too busy. Pure."""

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime


def read_retry_after(headers: Mapping[str, str], now: float) -> float:
    """Return the seconds that an endpoint asks to wait, given as a number or as a date; 0 where it gives neither.

    ``now`` is the time in seconds since 1970.
    """
    text = headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        seconds = _read_date(text) - now
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _read_date(text: str) -> float:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return -math.inf
