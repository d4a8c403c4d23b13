"""Memory of the host that is free for more: of the machine, or of this process's control group."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
SHARE = 0.8
"""Part of the available memory that may be taken at once."""


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the smaller of what the machine and the control group (version 2) have left; None: not known."""
    try:
        machine = _read_field(meminfo.read_text(), "MemAvailable:") * 1024
    except (OSError, ValueError, StopIteration):
        return None
    try:
        limit, used = int((cgroup / "memory.max").read_text()), int((cgroup / "memory.current").read_text())
        cached = _read_field((cgroup / "memory.stat").read_text(), "inactive_file")
    except (OSError, ValueError, StopIteration):  # no group, or one without a limit
        return machine
    return max(0, min(machine, limit - used + cached))


def total_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the smaller of the machine's memory and the limit of the control group (version 2); None: not known."""
    try:
        machine = _read_field(meminfo.read_text(), "MemTotal:") * 1024
    except (OSError, ValueError, StopIteration):
        return None
    try:
        return min(machine, int((cgroup / "memory.max").read_text()))
    except (OSError, ValueError):  # no group, or one without a limit
        return machine


def has_room(num_bytes: int, available: int | None) -> bool:
    """Return whether so many bytes may be taken; not where it is not known what is available."""
    return available is not None and num_bytes <= SHARE * available


def _read_field(text: str, name: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [name])
