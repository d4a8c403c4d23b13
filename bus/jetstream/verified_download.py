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

from lightningbus.bus.errors import ChecksumMismatchError
from lightningbus.schemas.weights.events import Blob


@dataclass
class Stopwatch:
    """Seconds, as they add up."""

    seconds: float = 0.0


_STOPWATCH: ContextVar[Stopwatch] = ContextVar("verifying")


@contextmanager
def measure_verification() -> Iterator[Stopwatch]:
    """Measure how long the block verifies incoming data, including in threads that it waits for."""
    spent = Stopwatch()
    token = _STOPWATCH.set(spent)
    try:
        yield spent
    finally:
        _STOPWATCH.reset(token)


@contextmanager
def timed_verification() -> Iterator[None]:
    """Add the block's duration to the verification time; see `measure_verification`."""
    started = time.perf_counter()
    try:
        yield
    finally:
        _STOPWATCH.get(Stopwatch()).seconds += time.perf_counter() - started


@contextmanager
def open_verified_writer(blob: Blob, path: Path) -> Iterator[Callable[[bytes], None]]:
    """Open a writer that takes a blob's bytes in order; the file is at ``path`` once the block has ended.

    Raises `ChecksumMismatchError` if they do not match the manifest.
    Too many bytes raise at once, before they fill the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary, digest, size = Path(name), hashlib.sha256(), 0
    try:
        with os.fdopen(handle, "wb") as file:

            def write(data: bytes) -> None:
                nonlocal size
                size += len(data)
                if size > blob.size:
                    raise ChecksumMismatchError(
                        f"blob {blob.bucket}/{blob.name} has {size} bytes or more, not {blob.size}"
                    )
                with timed_verification():
                    digest.update(data)
                file.write(data)

            yield write
        verify_checksum(blob, size, digest.hexdigest())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """Hash a file with SHA-256, in the form that manifests use."""
    with timed_verification(), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_checksum(blob: Blob, size: int, digest: str) -> None:
    """Raise `ChecksumMismatchError` unless size and SHA-256 match the manifest."""
    if size != blob.size:
        raise ChecksumMismatchError(f"blob {blob.bucket}/{blob.name} has {size} bytes, not {blob.size}")
    if digest != blob.sha256:
        raise ChecksumMismatchError(f"blob {blob.bucket}/{blob.name} hashes to {digest[:12]}…, not {blob.sha256[:12]}…")
