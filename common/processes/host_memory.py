"""Memory of the host that is free for more: of the machine, or of this process's control group."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MEMINFO = Path("/proc/meminfo")
MEMBERSHIP = Path("/proc/self/cgroup")
"""Control groups of this process, a line each: number, controllers, path (cgroups(7))."""
CGROUPS = Path("/sys/fs/cgroup")
SHARE = 0.8
"""Part of the available memory that may be taken at once."""


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of a version of control groups: of files, and of a field of ``memory.stat``."""

    limit: str
    usage: str
    cache: str


_FIRST = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = _Version("memory.max", "memory.current", "inactive_file")


class HostMemory(NamedTuple):
    """Memory of the host, in bytes."""

    available_bytes: int
    total_bytes: int


def read_memory(meminfo: Path = MEMINFO, membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> HostMemory | None:
    """Return the least of what the machine and the control groups of this process have, and have left; None: not known.

    Groups of both versions count, each with all groups above it that are visible.
    """
    try:
        text = meminfo.read_text()
        available_bytes, total_bytes = _read_field(text, "MemAvailable:") * 1024, _read_field(text, "MemTotal:") * 1024
    except (OSError, ValueError, StopIteration):
        return None
    for limit in _find_limits(membership, cgroups):
        available_bytes = min(available_bytes, limit.available_bytes)
        total_bytes = min(total_bytes, limit.total_bytes)
    return HostMemory(max(0, available_bytes), total_bytes)


def available_bytes(meminfo: Path = MEMINFO) -> int | None:
    """Return the bytes that `read_memory` finds left; None: not known."""
    memory = read_memory(meminfo)
    return None if memory is None else memory.available_bytes


def has_room(num_bytes: int, available: int | None) -> bool:
    """Return whether so many bytes may be taken; not where it is not known what is available."""
    return available is not None and num_bytes <= SHARE * available


def _find_limits(membership: Path, cgroups: Path) -> list[HostMemory]:
    """Return the limit of each control group, and what is left of it once the kernel drops files that it has cached."""
    limits = []
    for group, version in _find_groups(membership, cgroups):
        try:
            total, usage = int((group / version.limit).read_text()), int((group / version.usage).read_text())
            cache = _read_field((group / "memory.stat").read_text(), version.cache)
        except (OSError, ValueError, StopIteration):  # one without a limit, or that a container does not see
            continue
        limits.append(HostMemory(total - usage + cache, total))
    return limits


def _find_groups(membership: Path, cgroups: Path) -> Iterator[tuple[Path, _Version]]:
    """Yield the groups of this process that bound memory, and those above them; a container sees its own as the root.

    The layout is that of cgroups(7): version 2 has no controllers in its line, version 1 a root for each controller.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, version = cgroups, _SECOND
        elif "memory" in controllers.split(","):
            root, version = cgroups / "memory", _FIRST
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for part in (group, *group.parents) if ".." not in group.parts else [PurePosixPath()]:
            yield root / part, version


def _read_field(text: str, name: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [name])
