"""A stream that turns printed lines into log messages, in a process whose log lines are objects."""

import io
import logging
import sys
import threading
from typing import Literal, TextIO


class PrintedLines(io.TextIOBase):
    """A text stream that logs each whole line under the stream's name, of a progress bar its last state."""

    def __init__(self, name: str, original: TextIO) -> None:
        self._log, self._original = logging.getLogger(name), original
        self._thread = threading.local()

    def write(self, text: str) -> int:
        """Log the lines that end in ``text``; the rest waits for its end, in each thread."""
        if getattr(self._thread, "is_logging", False):  # logging reports its own failure
            return self._original.write(text)
        *lines, rest = (getattr(self._thread, "rest", "") + text).split("\n")
        self._thread.rest = rest[rest.rfind("\r", 0, -1) + 1 :]  # a bar is drawn over the one before
        self._thread.is_logging = True
        try:
            for line in lines:
                if state := line.rstrip().rpartition("\r")[2].rstrip():
                    self._log.info("%s", state)
        finally:
            self._thread.is_logging = False
        return len(text)

    def writable(self) -> bool:
        """Return true."""
        return True

    def fileno(self) -> int:
        """Return the number of the original stream, which child processes write to."""
        return self._original.fileno()


def log_printed_lines(stream: Literal["stdout", "stderr"]) -> None:
    """Log what this process prints to a standard stream from now on; a second time changes nothing.

    Handlers that write log lines to the stream must have been made before.
    """
    original = getattr(sys, stream)
    if original is not None and not isinstance(original, PrintedLines):
        setattr(sys, stream, PrintedLines(stream, original))
