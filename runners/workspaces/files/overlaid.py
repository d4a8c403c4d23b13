"""Copies files over those of a directory that an agent has had."""

import os
import shutil
from pathlib import Path


def copy_over(source: Path, target: Path) -> None:
    """Copy the tree of ``source`` over ``target``; no link that stands in ``target`` is followed."""
    for entry in os.scandir(source):
        place = target / entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        if os.path.lexists(place) and not (is_directory and place.is_dir() and not place.is_symlink()):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()
        if is_directory:
            place.mkdir(exist_ok=True)
            place.chmod(0o755)
            copy_over(Path(entry.path), place)
        else:
            shutil.copy2(entry.path, place, follow_symlinks=False)
