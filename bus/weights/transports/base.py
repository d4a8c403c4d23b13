"""The interface of a transport: named objects in buckets."""

import re
from pathlib import Path
from typing import Protocol

from lightningbus.bus.errors import BusError
from lightningbus.schemas.weights.events import Blob

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Transport(Protocol):
    """Named objects in buckets; `lightningbus.bus.jetstream.object_store.ObjectStore` is one."""

    async def put(self, bucket: str, name: str, source: Path) -> Blob:
        """Store a file atomically, replacing an older object."""
        ...

    async def get(self, blob: Blob, path: Path) -> None:
        """Write a blob to ``path``, all of it or nothing.

        Raises `ChecksumMismatchError` if its bytes do not match the manifest, `BusError` if it does not exist.
        """
        ...

    async def list_names(self, bucket: str) -> list[str]:
        """List the names of all objects of a bucket."""
        ...

    async def delete(self, bucket: str, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...


def object_key(bucket: str, name: str) -> str:
    """Build ``bucket/name``; raise `BusError` for names that could lead elsewhere."""
    if not _NAME.fullmatch(bucket) or not _NAME.fullmatch(name):
        raise BusError(f"{bucket}/{name} is no name of a blob outside the bus")
    return f"{bucket}/{name}"
