"""What agents print, passed on to our own standard error: whole lines, and not without end."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

BURST_BYTES = 1024 * 1024
PER_SECOND = 16 * 1024
READ_BYTES = 64 * 1024
PAUSE_SECONDS = 0.01
"""Until one that prints too much is listened to again: reading it takes a little of this process' time, not all."""
STANDARD_ERROR = 2


@dataclass
class OutputBudget:
    """Of our standard error, what the processes of one slot may fill: so much ahead, and so much a second."""

    clock: Callable[[], float] = time.monotonic
    _left: float = BURST_BYTES
    _at: float = 0.0
    _spent: bool = False

    def take(self, count: int) -> bool:
        """Whether there is room for so many bytes."""
        now = self.clock()
        self._left = min(BURST_BYTES, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        # Once it is spent a quarter has to come back, or every other line would be missing.
        self._spent = self._left < max(count, BURST_BYTES / 4 if self._spent else 0)
        if not self._spent:
            self._left -= count
        return not self._spent


class OutputForwarder:
    """The reading end of one process' standard error; what is beyond its share is read and left out.

    The process has a pipe, not our own standard error: that may be a file, which it could read, shorten and fill.
    """

    def __init__(self, end: int, share: OutputBudget) -> None:
        """``end``: a file descriptor, which is ours to close from now on."""
        os.set_blocking(end, False)
        self._end, self._share = end, share
        self._begun = b""
        self._left_out = 0
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Read what is still there, and no more."""
        self._loop.remove_reader(self._end)
        if self._pause is not None:
            self._pause.cancel()
        with contextlib.suppress(BlockingIOError):
            self._pass_on(os.read(self._end, BURST_BYTES))
        os.close(self._end)
        if self._begun:
            self._say(self._begun + b"\n")
        self._tell()

    def _listen(self) -> None:
        self._loop.add_reader(self._end, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._end, READ_BYTES)
        except BlockingIOError:
            return
        if data and self._pass_on(data):
            return
        self._loop.remove_reader(self._end)
        if data:
            self._pause = self._loop.call_later(PAUSE_SECONDS, self._listen)

    def _pass_on(self, data: bytes) -> bool:
        """Whether there was room for it."""
        text = self._begun + data
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) > READ_BYTES else 0)
        self._begun = text[end:]
        return self._say(text[:end])

    def _say(self, lines: bytes) -> bool:
        if not self._share.take(len(lines)):
            self._left_out += len(lines)
            return False
        if lines:
            self._tell()
            try:
                os.write(STANDARD_ERROR, lines)
            except OSError:  # nobody reads it, or its disk is full: not the agent's affair
                self._left_out += len(lines)
        return True

    def _tell(self) -> None:
        left_out, self._left_out = self._left_out, 0
        if left_out:
            log.warning("%d bytes of what an agent printed are left out", left_out)
