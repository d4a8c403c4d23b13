"""On the path of every process of a chaos run: its clock is off by the seconds in ``$CHAOS_SKEWS/<pid>``, if any."""

import os
import time
from pathlib import Path

_time, _time_ns = time.time, time.time_ns
_file = Path(os.environ.get("CHAOS_SKEWS", "/nowhere"))


def _skew() -> float:
    try:
        return float((_file / str(os.getpid())).read_text())
    except (OSError, ValueError):
        return 0.0


time.time = lambda: _time() + _skew()
time.time_ns = lambda: _time_ns() + int(_skew() * 1e9)
