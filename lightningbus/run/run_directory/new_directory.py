"""Writes a directory whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightningbus.run.errors import UserError


def is_vacant(path: Path) -> bool:
    """Return whether a directory can be written there: the path is free, or an empty directory."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Create a directory that becomes ``target`` when the block ends well, and is removed otherwise.

    ``target`` must not exist. Raises `UserError` if it cannot be written.
    """
    target = target.absolute()
    temporary = target.with_name(f".{target.name}.writing")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
