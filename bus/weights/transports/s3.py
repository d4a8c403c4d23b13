"""Blobs in S3-compatible storage; credentials, region and endpoint come from the usual ``AWS_*`` variables.

Large files are sent in parts and fetched in ranges, several at once; a failed part or range is retried by itself. A
lifecycle rule of the bucket should remove incomplete uploads of killed writers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.verified_download import open_verified_writer, sha256_of
from lightningbus.bus.weights.transports.base import object_key
from lightningbus.schemas.weights.events import Blob

PART_BYTES = 8 << 20
MAX_PARTS_IN_FLIGHT = 4
RETRY = timedelta(seconds=60)
"""Time for which a request is retried before it fails."""


class S3Transport:
    """Objects ``prefix/bucket/name`` of an ``s3://storage-bucket/prefix``; see `base.Transport`."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _translate_errors(f"{url} cannot be used"):
            self._store = S3Store.from_url(url, retry_config={"retry_timeout": RETRY})

    async def put(self, bucket: str, name: str, source: Path) -> Blob:
        """See `Transport`."""
        with _translate_errors(f"{self._url}: {bucket}/{name} cannot be written"):
            sending = obstore.put_async(
                self._store,
                object_key(bucket, name),
                source,
                chunk_size=PART_BYTES,
                max_concurrency=MAX_PARTS_IN_FLIGHT,
            )
            digest, _ = await asyncio.gather(asyncio.to_thread(sha256_of, source), sending)
        return Blob(bucket=bucket, name=name, size=source.stat().st_size, sha256=digest)

    async def get(self, blob: Blob, path: Path) -> None:
        """See `Transport`."""
        name = object_key(blob.bucket, blob.name)
        pending: deque[asyncio.Future[Any]] = deque()
        with _translate_errors(f"{self._url}: {name} cannot be read"), open_verified_writer(blob, path) as write:
            size = (await obstore.head_async(self._store, name))["size"]
            try:
                for begin in range(0, size, PART_BYTES):
                    part: Awaitable[Any] = obstore.get_range_async(
                        self._store, name, start=begin, end=min(begin + PART_BYTES, size)
                    )
                    pending.append(asyncio.ensure_future(part))
                    if len(pending) >= MAX_PARTS_IN_FLIGHT:
                        write(bytes(await pending.popleft()))
                while pending:
                    write(bytes(await pending.popleft()))
            finally:
                for left in pending:
                    left.cancel()

    async def list_names(self, bucket: str) -> list[str]:
        """See `Transport`."""
        with _translate_errors(f"{self._url} cannot be listed"):
            objects = await obstore.list(self._store, f"{bucket}/").collect_async()
        return sorted(entry["path"].rpartition("/")[2] for entry in objects)

    async def delete(self, bucket: str, name: str) -> None:
        """See `Transport`."""
        with _translate_errors(f"{self._url}: {bucket}/{name} cannot be deleted"):
            await obstore.delete_async(self._store, object_key(bucket, name))


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Turn the storage's errors into a `BusError` with their first line, which holds no credentials."""
    try:
        yield
    except FileNotFoundError as error:
        raise BusError(f"{what}: there is no such bucket or object (expired, deleted)") from error
    except BaseError as error:
        raise BusError(f"{what}: {str(error).splitlines()[0][:300]}") from error
