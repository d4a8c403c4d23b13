"""Archives that become a workspace: unpacked within bounds, and never outside of their directory."""

import errno
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tarfile import EOFHeaderError, HeaderError, ReadError  # type: ignore[attr-defined]
from typing import Self

from lightningbus.runners.workspaces.errors import WorkspaceRefusedError
from lightningbus.runners.workspaces.specification import is_inside, leads_out
from lightningbus.schemas.text import shorten_line

GIB = 2**30
MAX_REASON_LETTERS = 200
CHUNK_BYTES = 2**20
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
FAULTS_OF_NAMES = frozenset({errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EILSEQ})
"""Errors of files whose names are too long, or are those of a file and of a directory."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Bounds of a workspace's files."""

    max_files: int
    max_bytes: int

    def check(self, num_files: int, num_bytes: int) -> None:
        """Raise `WorkspaceRefusedError` beyond a bound."""
        if num_files > self.max_files:
            raise WorkspaceRefusedError(f"the workspace has more than {self.max_files:,} files (workspace.max_files)")
        if num_bytes > self.max_bytes:
            raise WorkspaceRefusedError(f"the workspace has more than {self.max_bytes / GIB:g} GiB (workspace.max_gib)")


def unpack(archive: Path, target: Path, limits: SizeLimits) -> None:
    """Unpack a file of tar or zip, and check it to its end.

    Raises `WorkspaceRefusedError` for one that is neither, damaged, too large, or leads out; OSError for a fault of
    this machine.
    """
    target.mkdir()
    try:
        if _is_zip(archive):
            _unpack_zip(archive, target, limits)
        else:
            _unpack_tar(archive, target, limits)
    except (WorkspaceRefusedError, MemoryError):
        raise
    except Exception as error:  # The libraries raise errors of many kinds for damaged bytes.
        if isinstance(error, OSError) and error.errno is not None and error.errno not in FAULTS_OF_NAMES:
            raise
        reason = shorten_line(str(error) or type(error).__name__, MAX_REASON_LETTERS)
        raise WorkspaceRefusedError(f"the archive {archive.name} cannot be unpacked: {reason}") from None


def _is_zip(archive: Path) -> bool:
    """Return whether an archive is a zip; a tar may end with a zip that is one of its files."""
    with archive.open("rb") as file:
        if file.read(len(ZIP_STARTS[0])) in ZIP_STARTS:
            return True
    return zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive)


def _unpack_tar(archive: Path, target: Path, limits: SizeLimits) -> None:
    num_files = num_bytes = 0
    with tarfile.open(archive, tarinfo=_Member) as file:
        for member in file:
            _check_name(archive, member.name)
            num_files, num_bytes = num_files + 1, num_bytes + member.size
            limits.check(num_files, num_bytes)
            if member.issym() and leads_out(PurePosixPath(member.name), member.linkname):
                raise WorkspaceRefusedError(f"the archive {archive.name} has a link that leads out: {member.name}")
            file.extract(member, target, filter="data")
            if member.isdir() and not (target / member.name).is_dir():  # Python's tarfile leaves a file there.
                raise FileExistsError(errno.EEXIST, "a file and a directory have one name", member.name)
        assert file.fileobj is not None, "it is open"
        num_bytes = 0
        while rest := file.fileobj.read(CHUNK_BYTES):  # A compressed file has its check sum at its end.
            num_bytes += len(rest)
            limits.check(0, num_bytes)


class _Member(tarfile.TarInfo):
    """A file of a tar whose end is its mark; for Python's tarfile a damaged header, or no more bytes, ends it too."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """Read the next header; raise ReadError for one that is damaged or missing."""
        try:
            return super().fromtarfile(tarfile)
        except EOFHeaderError:
            raise
        except HeaderError as error:
            raise ReadError(f"it is damaged, or ends too soon: {error}") from None


def _unpack_zip(archive: Path, target: Path, limits: SizeLimits) -> None:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        limits.check(len(members), sum(member.file_size for member in members))
        for member in members:
            _check_name(archive, member.filename)
            path = Path(file.extract(member, target))
            mode = member.external_attr >> 16 & 0o777
            if mode and path.is_file():
                path.chmod(mode | 0o600)


def _check_name(archive: Path, name: str) -> None:
    if name.strip("/") not in ("", ".") and not is_inside(name):
        raise WorkspaceRefusedError(f"the archive {archive.name} has a path that leads out: {name[:200]!r}")
