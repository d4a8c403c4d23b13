"""A blob on its way to a file: all of it and nothing else, or no file at all."""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from bus.errors import BlobCorrupt
from schemas.weights.events import Blob


@dataclass
class Spent:
    """Seconds, as they add up."""

    seconds: float = 0.0


_SPENT: ContextVar[Spent] = ContextVar("verifying")


@contextmanager
def counting() -> Iterator[Spent]:
    """How long the block verifies what arrives, in threads that it waits for too."""
    spent = Spent()
    token = _SPENT.set(spent)
    try:
        yield spent
    finally:
        _SPENT.reset(token)


@contextmanager
def verifying() -> Iterator[None]:
    """This is part of verifying: see `counting`."""
    started = time.perf_counter()
    try:
        yield
    finally:
        _SPENT.get(Spent()).seconds += time.perf_counter() - started


@contextmanager
def arriving(blob: Blob, path: Path) -> Iterator[Callable[[bytes], None]]:
    """Takes a blob's bytes in order; the file is at ``path`` once the block has ended.

    Raises `BlobCorrupt` if they are not what the manifest says; as soon as they are too many, so that no other object
    fills the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary, digest, size = Path(name), hashlib.sha256(), 0
    try:
        with os.fdopen(handle, "wb") as file:

            def take(data: bytes) -> None:
                nonlocal size
                size += len(data)
                if size > blob.size:
                    raise BlobCorrupt(f"blob {blob.bucket}/{blob.name} has {size} bytes or more, not {blob.size}")
                with verifying():
                    digest.update(data)
                file.write(data)

            yield take
        check(blob, size, digest.hexdigest())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """A file's SHA-256, as manifests have it."""
    with verifying(), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(blob: Blob, size: int, digest: str) -> None:
    """Raises `BlobCorrupt` unless size and SHA-256 are the manifest's."""
    if size != blob.size:
        raise BlobCorrupt(f"blob {blob.bucket}/{blob.name} has {size} bytes, not {blob.size}")
    if digest != blob.sha256:
        raise BlobCorrupt(f"blob {blob.bucket}/{blob.name} hashes to {digest[:12]}…, not {blob.sha256[:12]}…")
