"""Forwards what agents print to our standard error, whole lines within a budget, and keeps its end for a rollout."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from lightningbus.runners.agent.worker.output_capture import OutputTail

log = logging.getLogger(__name__)

BURST_BYTES = 1024 * 1024
BYTES_PER_SECOND = 16 * 1024
READ_BYTES = 64 * 1024
PAUSE_SECONDS = 0.01
"""Pause before reading again from an agent that prints too much, so that reading it takes little CPU time."""
STANDARD_ERROR = 2


@dataclass
class OutputBudget:
    """A token bucket for the processes of one slot: a burst, and a rate in bytes per second."""

    clock: Callable[[], float] = time.monotonic
    _level: float = BURST_BYTES
    _updated_at: float = 0.0
    _is_spent: bool = False

    def take(self, count: int) -> bool:
        """Take ``count`` bytes from the bucket; return whether there were enough."""
        now = self.clock()
        self._level = min(BURST_BYTES, self._level + (now - self._updated_at) * BYTES_PER_SECOND)
        self._updated_at = now
        # Once it is spent a quarter has to come back, or every other line would be missing.
        self._is_spent = self._level < max(count, BURST_BYTES / 4 if self._is_spent else 0)
        if not self._is_spent:
            self._level -= count
        return not self._is_spent


class SlotOutput:
    """The end of what the processes of one slot have printed since it was cleared."""

    def __init__(self) -> None:
        self._tail = OutputTail()
        self._sources: set[OutputForwarder] = set()

    def follow(self, source: "OutputForwarder") -> None:
        """Read from a process until it is left."""
        self._sources.add(source)

    def leave(self, source: "OutputForwarder") -> None:
        """Read from a process no more; its output stays."""
        self._sources.discard(source)

    def add(self, data: bytes) -> None:
        """Append output; only the end is kept."""
        self._tail.add(data)

    def clear(self) -> None:
        """Forget what was printed until now."""
        self.take()

    def take(self) -> str:
        """Return the text since the last call, and forget it; a first line counts the bytes that are missing."""
        for source in self._sources:
            source.drain()
        return self._tail.take()


class OutputForwarder:
    """The reading end of a process's standard error; output beyond its budget is read and dropped.

    The process has a pipe, not our own standard error: that may be a file, which it could read, shorten and fill.
    """

    def __init__(self, end: int, budget: OutputBudget, tail: SlotOutput) -> None:
        """Prepare to forward from the descriptor ``end``, which this object closes; all is added to ``tail``."""
        os.set_blocking(end, False)
        self._end, self._budget, self._tail = end, budget, tail
        tail.follow(self)
        self._partial_line = b""
        self._dropped_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Read the remaining output, then close."""
        self._loop.remove_reader(self._end)
        if self._pause is not None:
            self._pause.cancel()
        self.drain()
        self._tail.leave(self)
        os.close(self._end)
        if self._partial_line:
            self._log_lines(self._partial_line + b"\n")
        self._report_dropped()

    def drain(self) -> None:
        """Read what there is now."""
        with contextlib.suppress(BlockingIOError):
            self._forward(os.read(self._end, BURST_BYTES))

    def _listen(self) -> None:
        self._loop.add_reader(self._end, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._end, READ_BYTES)
        except BlockingIOError:
            return
        if data and self._forward(data):
            return
        self._loop.remove_reader(self._end)
        if data:
            self._pause = self._loop.call_later(PAUSE_SECONDS, self._listen)

    def _forward(self, data: bytes) -> bool:
        """Return whether the budget sufficed."""
        self._tail.add(data)
        text = self._partial_line + data
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) > READ_BYTES else 0)
        self._partial_line = text[end:]
        return self._log_lines(text[:end])

    def _log_lines(self, lines: bytes) -> bool:
        if not self._budget.take(len(lines)):
            self._dropped_bytes += len(lines)
            return False
        if lines:
            self._report_dropped()
            try:
                os.write(STANDARD_ERROR, lines)
            except OSError:  # nobody reads it, or its disk is full
                self._dropped_bytes += len(lines)
        return True

    def _report_dropped(self) -> None:
        dropped, self._dropped_bytes = self._dropped_bytes, 0
        if dropped:
            log.warning("%d bytes of what an agent printed were dropped", dropped)
