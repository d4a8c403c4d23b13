"""Archives that become a workspace: unpacked within bounds, and never outside of their directory."""

import errno
import os
import stat
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
MAX_HEADER_BYTES = 2**20
"""Longest header of a tar's file, which Python's tarfile reads into memory: names, and attributes by PAX."""
HEADER_TYPES = frozenset(
    (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
)
UNIX = 3
"""``create_system`` of a file in a zip whose mode is one of Unix."""
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
            if member.issym():
                _check_link(archive, member.name, member.linkname)
            file.extract(member, target, filter="data")
            place = target / member.name
            if member.isdir() and not place.is_dir():  # Python's tarfile leaves a file there.
                raise FileExistsError(errno.EEXIST, "a file and a directory have one name", member.name)
            if member.issym() and not place.is_symlink():  # Python's tarfile goes on without the link.
                raise FileExistsError(errno.EEXIST, "a link cannot be made", member.name)
        assert file.fileobj is not None, "it is open"
        num_bytes = 0
        while rest := file.fileobj.read(CHUNK_BYTES):  # A compressed file has its check sum at its end.
            num_bytes += len(rest)
            limits.check(0, num_bytes)


class _Member(tarfile.TarInfo):
    """A file of a tar whose end is its mark; for Python's tarfile a damaged header, or no more bytes, ends it too."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header; raise ReadError for one that announces a longer one than names and attributes need."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in HEADER_TYPES and member.size > MAX_HEADER_BYTES:
            raise ReadError(f"it is damaged: a header of {member.size:,} bytes")
        return member

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
    links: list[tuple[str, str]] = []
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        limits.check(len(members), sum(member.file_size for member in members))
        for member in members:
            _check_name(archive, member.filename)
            mode = member.external_attr >> 16
            kind = stat.S_IFMT(mode) if member.create_system == UNIX else 0
            if kind == stat.S_IFLNK:
                links.append((member.filename, os.fsdecode(file.read(member))))
                continue
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise WorkspaceRefusedError(
                    f"the archive {archive.name} has a file that is not a regular one: {member.filename}"
                )
            path = Path(file.extract(member, target))
            if mode & 0o777 and path.is_file():
                path.chmod(mode & 0o777 | 0o600)
    for name, linked in links:  # After the files: none is written through a link.
        _check_link(archive, name, linked)
        place = target / name
        if not place.parent.resolve().is_relative_to(target.resolve()):
            raise WorkspaceRefusedError(f"the archive {archive.name} has a path that leads out: {name[:200]!r}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(linked)


def _check_link(archive: Path, name: str, linked: str) -> None:
    if not linked or leads_out(PurePosixPath(name), linked):
        raise WorkspaceRefusedError(f"the archive {archive.name} has a link that leads out: {name}")


def _check_name(archive: Path, name: str) -> None:
    if name.strip("/") not in ("", ".") and not is_inside(name):
        raise WorkspaceRefusedError(f"the archive {archive.name} has a path that leads out: {name[:200]!r}")
