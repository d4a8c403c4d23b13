"""When to stop burying: a flood of messages nobody can read is a bad deploy, not so many dead letters. Pure."""

from collections import deque

from bus.errors import PoisonFlood

IN_A_ROW = 20
WINDOW = 200
SHARE = 0.5


class PoisonLimit:
    """Watches one consumer; `bad` raises `PoisonFlood` when it is better to stop than to bury what comes next.

    The limits are arroyo's (max_consecutive_count, max_invalid_ratio): 20 in a row, or half of the last 200.
    """

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._lately: deque[bool] = deque(maxlen=WINDOW)
        self._row = 0

    def good(self) -> None:
        """A message could be read."""
        self._row = 0
        self._lately.append(False)

    def bad(self, reason: str) -> None:
        """A message could not be read; call before burying it."""
        self._row += 1
        self._lately.append(True)
        flood = len(self._lately) == WINDOW and sum(self._lately) > SHARE * WINDOW
        if self._row > IN_A_ROW or flood:
            raise PoisonFlood(
                f"{self._reader} stops: {sum(self._lately)} of the last {len(self._lately)} messages could not be "
                f"read, the last because {reason}. What is left stays where it is: put right who writes or who reads "
                "it, start again, and see `lightningbus dead list`"
            )
