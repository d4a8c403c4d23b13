"""Weights in a directory that others may write to: what was verified is what is served."""

import os
from pathlib import Path

import pytest

from lightningbus.bus.errors import ChecksumMismatchError
from lightningbus.bus.jetstream.verified_download import sha256_of
from lightningbus.bus.weights.transports.directory import DirectoryTransport

CONTENT = b"weights" * 10_000


async def test_a_writer_of_the_directory_changes_neither_what_was_got_nor_what_was_put(tmp_path: Path) -> None:
    """Both sides have a file of their own, on the same file system too."""
    shared, source, got = DirectoryTransport(tmp_path / "shared"), tmp_path / "source", tmp_path / "node" / "got"
    source.write_bytes(CONTENT)
    blob = await shared.put("weights", "policy-0", source)
    await shared.get(blob, got)
    with (tmp_path / "shared" / "weights" / "policy-0").open("r+b") as file:
        file.write(b"poison")
    assert got.read_bytes() == CONTENT == source.read_bytes()
    assert sha256_of(got) == blob.sha256
    with pytest.raises(ChecksumMismatchError, match="hashes to"):
        await shared.get(blob, tmp_path / "node" / "late")
    assert not (tmp_path / "node" / "late").exists()


async def test_what_is_no_file_or_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A pipe would be waited for without end, and a large file would fill the node's disk."""
    shared, source, got = DirectoryTransport(tmp_path / "shared"), tmp_path / "source", tmp_path / "node" / "got"
    source.write_bytes(CONTENT)
    blob = await shared.put("weights", "policy-0", source)
    path = tmp_path / "shared" / "weights" / "policy-0"
    os.truncate(path, 1 << 40)
    with pytest.raises(ChecksumMismatchError, match="not 70000"):
        await shared.get(blob, got)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ChecksumMismatchError, match="is no file"):
        await shared.get(blob, got)
    assert not list((tmp_path / "node").iterdir())
