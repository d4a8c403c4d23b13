"""Archives that become a workspace: unpacked within bounds, and never outside of their directory."""

import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lightningbus.runners.workspaces.errors import WorkspaceRefusedError
from lightningbus.runners.workspaces.specification import is_inside, leads_out

GIB = 2**30


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
    """Unpack a file of tar or zip; raise `WorkspaceRefusedError` for one that is neither, too large, or leads out."""
    target.mkdir()
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, target, limits)
        else:
            _unpack_tar(archive, target, limits)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise WorkspaceRefusedError(f"the archive {archive.name} cannot be unpacked: {error}") from None
    except RuntimeError as error:  # a member of a zip that has a password
        raise WorkspaceRefusedError(f"the archive {archive.name} cannot be unpacked: {error}") from None


def _unpack_tar(archive: Path, target: Path, limits: SizeLimits) -> None:
    num_files = num_bytes = 0
    with tarfile.open(archive) as file:
        for member in file:
            _check_name(archive, member.name)
            num_files, num_bytes = num_files + 1, num_bytes + member.size
            limits.check(num_files, num_bytes)
            if member.issym() and leads_out(PurePosixPath(member.name), member.linkname):
                raise WorkspaceRefusedError(f"the archive {archive.name} has a link that leads out: {member.name}")
            file.extract(member, target, filter="data")


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
