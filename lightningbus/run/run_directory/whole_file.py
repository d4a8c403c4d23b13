"""Writes a file of a run's directory whole or not at all."""

from pathlib import Path

from lightningbus.run.errors import UserError


def write_whole(path: Path, content: str, mode: int = 0o666) -> None:
    """Write a file, replacing an older one; raises `UserError` where it cannot be written, as on a full disk.

    ``mode``: of the file, less what the umask takes away.
    """
    temporary = path.with_name(f".{path.name}")
    try:
        temporary.unlink(missing_ok=True)  # what a killed process left has its own mode
        temporary.touch(mode)
        temporary.write_bytes(content.encode())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
