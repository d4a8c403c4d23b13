"""Children and memory of processes, and facts of the machine, from Linux's ``/proc``."""

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
CPUINFO = PROC / "cpuinfo"
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> set[int]:
    """List the living children of a process, including orphans that it has adopted."""
    children: set[int] = set()
    try:
        threads = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return children
    for thread in threads:
        try:
            children.update(map(int, (thread / "children").read_bytes().split()))
        except OSError:  # the thread has ended meanwhile
            continue
    return children


def descendants(pid: int) -> set[int]:
    """List all descendants of a process, including zombies."""
    pids: set[int] = set()
    new = children_of(pid)
    while new:
        pids |= new
        new = set().union(*map(children_of, new)) - pids
    return pids


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        state = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")


def rss_bytes(pid: int) -> int:
    """Measure a process's memory in bytes, as ``ps`` shows it (RSS); 0 for one that is gone."""
    try:
        return int((PROC / str(pid) / "statm").read_bytes().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def pss_bytes(pid: int) -> int:
    """Measure a process's memory in bytes, with its part of pages that several processes share (PSS); else its RSS.

    The kernel walks all its pages, which takes milliseconds. https://docs.kernel.org/filesystems/proc.html
    """
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):  # It has ended, or is another user's.
        pass
    return rss_bytes(pid)


def total_bytes(pids: Iterable[int]) -> int:
    """Measure the memory that processes take together, pages that they share counted once."""
    return sum(map(pss_bytes, pids))


def cpu_seconds(pid: int) -> float:
    """Measure the CPU time that a process has used, all its threads together; 0 for one that is gone."""
    try:
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, IndexError):
        return 0.0


def find_value(path: Path, name: str) -> str:
    """Return the first value of a ``name : value`` file; empty if there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")
