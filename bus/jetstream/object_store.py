"""Large objects in chunks, laid out as a NATS Object Store so that ``nats object`` reads and writes them too.

Layout: https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-20.md. nats-py's own client sends
one chunk per round trip and reads in quadratic time; here chunks are pipelined both ways and never held whole.
"""

import asyncio
import base64
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError, ObjectNotFoundError

from lightningbus.bus.errors import BusError, StreamFullError
from lightningbus.bus.jetstream.batch_get import batch_get, sequence_of
from lightningbus.bus.jetstream.nats_client import FastReconnectClient
from lightningbus.bus.jetstream.publisher import Publisher
from lightningbus.bus.jetstream.verified_download import open_verified_writer
from lightningbus.common.observability import metrics
from lightningbus.schemas.weights.events import Blob

log = logging.getLogger(__name__)

_META = "$O.{bucket}.M.{name}"
CHUNK_BYTES = 128 * 1024
"""The Object Store's own default."""
MAX_CHUNKS_IN_FLIGHT = 64
MAX_CHUNKS = 2**32
PUBLISH_SECONDS = 600.0
READ_SECONDS = 60.0
"""Longest silence while reading before the read fails."""
RETRY_SECONDS = 0.2


class ObjectInfo(msgspec.Struct):
    """The needed fields of an object's entry in the Object Store."""

    nuid: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]{1,64}$")]
    """One token of a subject: a wildcard here would read, or purge, the chunks of others."""
    chunks: Annotated[int, Meta(ge=0, le=MAX_CHUNKS)]
    deleted: bool = False


class ObjectStore:
    """Puts and gets blobs, in the buckets provisioning has made."""

    def __init__(self, nc: FastReconnectClient, js: JetStreamContext, publisher: Publisher) -> None:
        self._nc = nc
        self._js = js
        self._publisher = publisher

    async def put(self, bucket: str, name: str, source: Path | bytes) -> Blob:
        """Store an object under a name, replacing an older one; returns its manifest.

        Storage that is full is waited for without a limit.
        """
        old = await self._entry(bucket, name)
        nuid = self._nc._nuid.next().decode()
        digest, size, count = hashlib.sha256(), 0, 0
        pending: set[asyncio.Task[int]] = set()
        try:
            for chunk in _read_chunks(source):
                digest.update(chunk)
                size, count = size + len(chunk), count + 1
                pending.add(asyncio.create_task(self._publish(f"$O.{bucket}.C.{nuid}", chunk, {})))
                if len(pending) >= MAX_CHUNKS_IN_FLIGHT:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for finished in done:
                        finished.result()
            await asyncio.gather(*pending)
        except BaseException:
            for task_left in pending:
                task_left.cancel()
            await self._purge(bucket, nuid)
            raise
        digests = "SHA-256=" + base64.urlsafe_b64encode(digest.digest()).decode()
        info = {**_build_info(bucket, name, nuid), "size": size, "chunks": count, "digest": digests}
        await self._write_info(bucket, name, info)
        if old is not None:
            await self._purge(bucket, old.nuid)
        return Blob(bucket=bucket, name=name, size=size, sha256=digest.hexdigest())

    async def get(self, blob: Blob, path: Path) -> None:
        """Write a blob to ``path``, all of it or nothing.

        Raises `ChecksumMismatchError` if its bytes do not match the manifest, `BusError` if it does not exist.
        """
        entry = await self._entry(blob.bucket, blob.name)
        if entry is None:
            raise BusError(f"blob {blob.bucket}/{blob.name} is not on the bus (expired or deleted)")
        with open_verified_writer(blob, path) as write:
            await self._read(blob, entry, write)

    async def list_names(self, bucket: str) -> list[str]:
        """List the names of all blobs of a bucket."""
        info = await self._js.stream_info(f"OBJ_{bucket}", subjects_filter=_META.format(bucket=bucket, name=">"))
        names = [name for subject in info.state.subjects or () if (name := _parse_name(subject)) is not None]
        listed = await asyncio.gather(*(self._is_readable(bucket, name) for name in names))
        return sorted(name for name, is_listed in zip(names, listed, strict=True) if is_listed)

    async def delete(self, bucket: str, name: str) -> None:
        """Remove a blob; one that is not there is no error."""
        entry = await self._entry(bucket, name)
        if entry is None:
            return
        await self._write_info(bucket, name, {**_build_info(bucket, name, entry.nuid), "deleted": True})
        await self._purge(bucket, entry.nuid)

    async def _read(self, blob: Blob, entry: ObjectInfo, write: Callable[[bytes], None]) -> None:
        subject, sequence, left = f"$O.{blob.bucket}.C.{entry.nuid}", 0, entry.chunks
        deadline = time.monotonic() + READ_SECONDS
        while left:
            before = left
            request = {"seq": sequence + 1, "next_by_subj": subject, "batch": min(left, MAX_CHUNKS_IN_FLIGHT)}
            async with batch_get(self._nc, f"OBJ_{blob.bucket}", request, READ_SECONDS) as chunks:
                async for chunk in chunks:
                    write(chunk.data)
                    left, sequence = left - 1, sequence_of(chunk)
            if left < before:
                deadline = time.monotonic() + READ_SECONDS
            elif time.monotonic() > deadline:
                raise BusError(f"blob {blob.bucket}/{blob.name}: no chunk came for {READ_SECONDS:g} s")
            else:  # the server that answered is behind the others
                await asyncio.sleep(RETRY_SECONDS)

    async def _entry(self, bucket: str, name: str) -> ObjectInfo | None:
        """Read the entry of an object; None if it is missing or unreadable, so that it can be rewritten."""
        try:
            return await self._read_entry(bucket, name)
        except (NotFoundError, ObjectNotFoundError):
            return None

    async def _is_readable(self, bucket: str, name: str) -> bool:
        """Return whether an object that the stream's leader lists can be read; a lagging server may not have it."""
        try:
            return await self._read_entry(bucket, name) is not None
        except (NotFoundError, ObjectNotFoundError):
            return True

    async def _read_entry(self, bucket: str, name: str) -> ObjectInfo | None:
        """Read the entry of an object; None if it is deleted or unreadable. Raise nats' errors if it is missing."""
        try:
            message = await self._js.get_last_msg(f"OBJ_{bucket}", _meta_subject(bucket, name), direct=True)
        except NoRespondersError as error:
            raise BusError(f"bucket {bucket} does not answer: `lightningbus provision` makes it") from error
        try:
            entry = msgspec.json.decode(message.data or b"", type=ObjectInfo)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            metrics.unreadable_entries.inc()
            log.warning("the entry of blob %s/%s cannot be read and counts for nothing: %s", bucket, name, error)
            return None
        return None if entry.deleted else entry

    async def _write_info(self, bucket: str, name: str, info: dict[str, Any]) -> None:
        payload = json.dumps(info).encode()
        await self._publish(_meta_subject(bucket, name), payload, {"Nats-Rollup": "sub"})

    async def _publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> int:
        while True:
            with suppress(StreamFullError):  # the publisher says what is full
                return await self._publisher.publish(subject, payload, headers, PUBLISH_SECONDS)

    async def _purge(self, bucket: str, nuid: str) -> None:
        await self._js.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.C.{nuid}")


def _build_info(bucket: str, name: str, nuid: str) -> dict[str, Any]:
    """Build an entry in the Object Store's format, for an object that has no bytes yet."""
    return {
        "name": name,
        "bucket": bucket,
        "nuid": nuid,
        "size": 0,
        "chunks": 0,
        "digest": "",
        "mtime": datetime.now(UTC).isoformat(),
        "options": {"max_chunk_size": CHUNK_BYTES},
    }


def _meta_subject(bucket: str, name: str) -> str:
    return _META.format(bucket=bucket, name=base64.urlsafe_b64encode(name.encode()).decode())


def _parse_name(subject: str) -> str | None:
    """Decode the object's name from the subject of its entry; None if no Object Store wrote there."""
    try:
        return base64.b64decode(subject.rpartition(".")[2], altchars=b"-_", validate=True).decode()
    except ValueError:
        return None


def _read_chunks(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield from (source[at : at + CHUNK_BYTES] for at in range(0, len(source), CHUNK_BYTES))
        return
    with source.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
