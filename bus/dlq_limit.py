"""Limit on dead letters: a flood of unreadable messages is a bad deploy and stops the reader. Pure."""

from collections import deque

from lightningbus.bus.errors import DlqLimitExceededError

MAX_CONSECUTIVE = 20
WINDOW = 200
MAX_INVALID_RATIO = 0.5


class DlqLimit:
    """Watches one consumer. `record_invalid` raises `DlqLimitExceededError` when most messages are invalid.

    The limits are arroyo's (max_consecutive_count, max_invalid_ratio): 20 in a row, or half of the last 200.
    """

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._consecutive = 0

    def record_valid(self) -> None:
        """Count a readable message."""
        self._consecutive = 0
        self._recent.append(False)

    def record_invalid(self, reason: str) -> None:
        """Count an unreadable message before it becomes a dead letter; raise `DlqLimitExceededError` over the limit."""
        self._consecutive += 1
        self._recent.append(True)
        flood = len(self._recent) == WINDOW and sum(self._recent) > MAX_INVALID_RATIO * WINDOW
        if self._consecutive > MAX_CONSECUTIVE or flood:
            raise DlqLimitExceededError(
                f"{self._reader} stops: {sum(self._recent)} of the last {len(self._recent)} messages could not be "
                f"read, the last because {reason}. What is left stays where it is: put right who writes or who reads "
                "it, start again, and see `lightningbus dlq list`"
            )
