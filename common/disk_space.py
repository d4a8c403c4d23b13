"""Free space where a role writes, and whether that is little."""

import shutil
from pathlib import Path

from lightningbus.common.observability import metrics

MIB = 1024 * 1024


def free_bytes(path: Path) -> int:
    """Measure the free space of the disk that holds a path, or would hold it; raise OSError."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def record_free(disk: str, free: int, least_mib: int) -> str:
    """Set the metric of a disk; returns a sentence where it has less than ``least_mib`` MiB free, else nothing."""
    metrics.disk_free.labels(disk).set(free)
    if free >= least_mib * MIB:
        return ""
    return f"the disk of the {disk} has {free // MIB} MiB free, and {least_mib} are wanted: make room"
