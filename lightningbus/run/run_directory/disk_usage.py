"""Disk space of a directory."""

import os
from collections import Counter
from pathlib import Path
from stat import S_ISDIR

BLOCK_BYTES = 512
"""Unit of ``st_blocks``, whatever the file system's own (stat(2))."""


def measure_disk_bytes(directory: Path) -> int:
    """Return the bytes of disk that the removal of a directory frees.

    Links are not followed. A file that has a name elsewhere too frees nothing. Files that vanish meanwhile count 0.
    """
    num_bytes, names, files = 0, Counter[tuple[int, int]](), dict[tuple[int, int], os.stat_result]()
    for place, _, file_names in os.walk(directory):
        for path in (Path(place), *(Path(place, name) for name in file_names)):
            try:
                stat = path.lstat()
            except OSError:
                continue
            if S_ISDIR(stat.st_mode):
                num_bytes += stat.st_blocks * BLOCK_BYTES
            else:
                inode = (stat.st_dev, stat.st_ino)
                names[inode] += 1
                files[inode] = stat
    return num_bytes + sum(
        stat.st_blocks * BLOCK_BYTES for inode, stat in files.items() if names[inode] >= stat.st_nlink
    )
