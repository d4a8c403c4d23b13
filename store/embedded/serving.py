"""The embedded engine of a directory behind ClickHouse's HTTP interface."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from lightningbus.bus.directory_lock import lock_directory
from lightningbus.bus.security.secrets import new_key, read_key, write_secret
from lightningbus.common.flat_settings import without_secrets
from lightningbus.store.embedded.engine import DirectoryLock, EmbeddedClickHouse
from lightningbus.store.embedded.http_interface import HttpInterface
from lightningbus.store.embedded.readonly_guard import KEY_FILE, WRITER

WRITER_KEY_NAME = "key of the writer"


@asynccontextmanager
async def serve_readonly(path: Path, lock: DirectoryLock = lock_directory) -> AsyncIterator[str]:
    """Serve the embedded engine of a directory over ClickHouse's HTTP interface while the block runs.

    Yields the URL for readers; raises `engine.EngineBusyError`. With
    `lightningbus.bus.directory_lock.lock_for_reading` the caller leaves the block when the directory is wanted.
    """
    async with serve_embedded(path, lock=lock) as (_, url):
        yield without_secrets(url)


@asynccontextmanager
async def serve_embedded(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    allowed_hosts: Collection[str] = (),
    lock: DirectoryLock = lock_directory,
) -> AsyncIterator[tuple[EmbeddedClickHouse, str]]:
    """Like `serve_readonly`, but yields the engine and the URL for the writer, whose key is a file in the directory."""
    engine = await asyncio.to_thread(EmbeddedClickHouse, path, lock)
    try:
        if not (path / KEY_FILE).exists():
            write_secret(path / KEY_FILE, new_key())
        async with HttpInterface(
            engine, host, port, read_key(path / KEY_FILE, WRITER_KEY_NAME), allowed_hosts
        ) as interface:
            yield engine, writer_url(path, interface.url)
    finally:
        await asyncio.to_thread(engine.close)


def writer_url(path: Path, url: str) -> str:
    """Return the URL of an embedded engine for its writer, with the key from its directory.

    Raises `lightningbus.bus.errors.CredentialsError`.
    """
    return url.replace("://", f"://{WRITER}:{read_key(path / KEY_FILE, WRITER_KEY_NAME)}@", 1)
