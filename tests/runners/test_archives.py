"""Archives that become workspaces: whole and right, or refused with the reason; a fault of the machine is neither."""

import errno
import gzip
import io
import os
import stat
import subprocess
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.runners.workspaces.files.archives import SizeLimits
from lightningbus.runners.workspaces.files.sources import fetch

pytestmark = pytest.mark.integration
LIMITS = SizeLimits(1000, 2**24)
CONTENTS = {f"folder/{number}": os.urandom(3000) for number in range(8)}
COMPRESSIONS: dict[str, Literal["w:", "w:gz", "w:bz2", "w:xz"]] = {
    "tar": "w:", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz",
}  # fmt: skip
SUFFIXES = [*COMPRESSIONS, "zip"]


def pack(suffix: str, members: list[tuple[str, bytes]]) -> bytes:
    """An archive; a name that ends with / is a directory."""
    file = io.BytesIO()
    if suffix == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                archive.writestr(name, content)
        return file.getvalue()
    with tarfile.open(fileobj=file, mode=COMPRESSIONS[suffix]) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type, member.size = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE, len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def unpack(place: Path, name: str, content: bytes) -> dict[str, bytes]:
    """The files of a workspace from an archive."""
    (place / name).write_bytes(content)
    target = place / "target"
    subprocess.run(["rm", "-rf", target], check=True)
    fetch("archive", place / name, "", target, LIMITS)
    return {str(each.relative_to(target)): each.read_bytes() for each in target.rglob("*") if each.is_file()}


def damage(whole: bytes) -> Iterator[bytes]:
    """An archive with wrong bytes in many places, and cut in many."""
    step = max(1, len(whole) // 20)
    for start in range(0, len(whole), step):
        wrong = bytes(byte ^ 0x55 for byte in whole[start : start + 40])
        yield whole[:start] + wrong + whole[start + 40 :]
        yield whole[:start]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_whole_archive_is_its_files_and_a_damaged_one_is_refused(tmp_path: Path, suffix: str) -> None:
    """A plain tar has check sums of its headers alone, so wrong bytes inside a file cannot be seen there."""
    whole = pack(suffix, list(CONTENTS.items()))
    assert unpack(tmp_path, f"a.{suffix}", whole) == CONTENTS
    num_refused = 0
    for damaged in damage(whole):
        try:
            files = unpack(tmp_path, f"a.{suffix}", damaged)
        except WorkspaceRefusedError as error:
            num_refused += 1
            assert "\n" not in str(error) and len(str(error)) < 300
        else:
            assert files.keys() == CONTENTS.keys(), "no file is missing"
            assert suffix == "tar" or files == CONTENTS
    assert num_refused > 20


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path: Path) -> None:
    inner = pack("zip", [("inner", b"1")])
    assert unpack(tmp_path, "a.tar", pack("tar", [("PK", b"2"), ("last.zip", inner)])) == {
        "PK": b"2",
        "last.zip": inner,
    }


@pytest.mark.parametrize("suffix", ["tar.gz", "zip"])
@pytest.mark.parametrize(
    "members",
    [[("a", b"1"), ("a/b", b"2")], [("a/b", b"1"), ("a", b"2")], [("a", b"1"), ("a/", b"")], [("n" * 300, b"1")]],
    ids=["file first", "directory first", "both", "long"],
)
def test_names_that_no_directory_can_have_are_refused(
    tmp_path: Path, suffix: str, members: list[tuple[str, bytes]]
) -> None:
    with pytest.raises(WorkspaceRefusedError, match=f"the archive a.{suffix} cannot be unpacked: "):
        unpack(tmp_path, f"a.{suffix}", pack(suffix, members))


def test_a_bomb_behind_the_end_of_a_tar_is_refused(tmp_path: Path) -> None:
    tar = pack("tar", [("a", b"1")]) + bytes(2 * LIMITS.max_bytes)
    with pytest.raises(WorkspaceRefusedError, match=r"workspace\.max_gib"):
        unpack(tmp_path, "a.tar.gz", gzip.compress(tar))


def test_a_full_disk_is_no_fault_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tarfile.TarFile, "extract", fail)
    with pytest.raises(WorkspaceFailedError, match="No space left"):
        unpack(tmp_path, "a.tar", pack("tar", [("a", b"1")]))


def pack_link(suffix: str, name: str, target: str, *others: str) -> bytes:
    """An archive of a symbolic link and some files."""
    file = io.BytesIO()
    if suffix == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            for other in others:
                archive.writestr(other, b"1")
            link = zipfile.ZipInfo(name)
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, target)
        return file.getvalue()
    with tarfile.open(fileobj=file, mode=COMPRESSIONS[suffix]) as tar:
        for other in others:
            member = tarfile.TarInfo(other)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        tar.addfile(member)
    return file.getvalue()


@pytest.mark.parametrize("suffix", ["tar.gz", "zip"])
def test_a_link_is_a_link_or_is_refused(tmp_path: Path, suffix: str) -> None:
    unpack(tmp_path, f"a.{suffix}", pack_link(suffix, "folder/link", "../real", "real"))
    assert str((tmp_path / "target" / "folder" / "link").readlink()) == "../real"
    with pytest.raises(WorkspaceRefusedError, match="has a link that leads out: folder/link"):
        unpack(tmp_path, f"a.{suffix}", pack_link(suffix, "folder/link", "/etc/passwd"))
    for name, target, others in (("link", "n/" * 3000, []), ("a", "b", ["a/c"])):
        with pytest.raises(WorkspaceRefusedError, match=f"the archive a.{suffix} cannot be unpacked: "):
            unpack(tmp_path, f"a.{suffix}", pack_link(suffix, name, target, *others))


def test_a_zip_with_a_file_that_is_not_regular_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        pipe = zipfile.ZipInfo("pipe")
        pipe.create_system, pipe.external_attr = 3, (stat.S_IFIFO | 0o644) << 16
        archive.writestr(pipe, b"")
    with pytest.raises(WorkspaceRefusedError, match="has a file that is not a regular one: pipe"):
        unpack(tmp_path, "a.zip", file.getvalue())


def test_a_bomb_in_the_header_of_a_tar_is_refused_before_it_is_read(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 2**26
    first = pack("tar", [("a", b"1")])[: 2 * tarfile.BLOCKSIZE]
    tar = first + header.tobuf(tarfile.USTAR_FORMAT) + bytes(2**26)
    tracemalloc.start()
    with pytest.raises(WorkspaceRefusedError, match=r"it is damaged: a header of 67,108,864 bytes"):
        unpack(tmp_path, "a.tar.gz", gzip.compress(tar))
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
