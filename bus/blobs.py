"""Large objects in chunks, laid out as a NATS Object Store so that ``nats object`` reads and writes them too.

Layout: https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-20.md. nats-py's own client sends
one chunk per round trip and reads in quadratic time; here chunks are pipelined both ways and never held whole.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError, ObjectNotFoundError

from bus.arriving import arriving
from bus.errors import BusError
from bus.publisher import Publisher
from bus.puller import Puller
from schemas.weights import Blob

_META = "$O.{bucket}.M.{name}"
CHUNK_BYTES = 128 * 1024
"""The Object Store's own default."""
CHUNKS_IN_FLIGHT = 64
PUBLISH_SECONDS = 600.0
READ_SECONDS = 60.0
"""Longest silence while reading before the read fails."""


class Blobs:
    """Puts and gets blobs, in the buckets provisioning has made."""

    def __init__(self, nc: Client, js: JetStreamContext, publisher: Publisher) -> None:
        self._nc = nc
        self._js = js
        self._publisher = publisher

    async def put(self, bucket: str, name: str, source: Path | bytes) -> Blob:
        """Store an object under a name, replacing an older one; returns its manifest."""
        old = await self._info(bucket, name)
        nuid = self._nc._nuid.next().decode()
        digest, size, count = hashlib.sha256(), 0, 0
        pending: set[asyncio.Task[int]] = set()
        try:
            for chunk in _chunks(source):
                digest.update(chunk)
                size, count = size + len(chunk), count + 1
                task = self._publisher.publish(f"$O.{bucket}.C.{nuid}", chunk, {}, PUBLISH_SECONDS)
                pending.add(asyncio.create_task(task))
                if len(pending) >= CHUNKS_IN_FLIGHT:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for finished in done:
                        finished.result()
            await asyncio.gather(*pending)
        except BaseException:
            for task_left in pending:
                task_left.cancel()
            await self._purge(bucket, nuid)
            raise
        info = {
            "name": name,
            "bucket": bucket,
            "nuid": nuid,
            "size": size,
            "chunks": count,
            "digest": "SHA-256=" + base64.urlsafe_b64encode(digest.digest()).decode(),
            "mtime": datetime.now(UTC).isoformat(),
            "options": {"max_chunk_size": CHUNK_BYTES},
        }
        await self._write_info(bucket, name, info)
        if old is not None:
            await self._purge(bucket, old["nuid"])
        return Blob(bucket=bucket, name=name, size=size, sha256=digest.hexdigest())

    async def get(self, blob: Blob, path: Path) -> None:
        """Write a blob to ``path``, all of it or nothing.

        Raises `BlobCorrupt` if its bytes are not what the manifest says, `BusError` if it is not there.
        """
        info = await self._info(blob.bucket, blob.name)
        if info is None:
            raise BusError(f"blob {blob.bucket}/{blob.name} is not on the bus (expired or deleted)")
        with arriving(blob, path) as take:
            await self._read(blob, info, take)

    async def names(self, bucket: str) -> list[str]:
        """Names of all blobs of a bucket."""
        found = await self._js.stream_info(f"OBJ_{bucket}", subjects_filter=_META.format(bucket=bucket, name=">"))
        names = [
            base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode() for subject in found.state.subjects or ()
        ]
        infos = await asyncio.gather(*(self._info(bucket, name) for name in names))
        return sorted(name for name, info in zip(names, infos, strict=True) if info is not None)

    async def delete(self, bucket: str, name: str) -> None:
        """Remove a blob; one that is not there is no error."""
        info = await self._info(bucket, name)
        if info is None:
            return
        await self._write_info(bucket, name, {**info, "size": 0, "chunks": 0, "digest": "", "deleted": True})
        await self._purge(bucket, info["nuid"])

    async def _read(self, blob: Blob, info: dict[str, Any], take: Callable[[bytes], None]) -> None:
        left = int(info["chunks"])
        if left == 0:
            return
        stream = f"OBJ_{blob.bucket}"
        name = self._nc._nuid.next().decode()  # a name, so that the filter is part of the request's subject
        config = ConsumerConfig(
            name=name,
            ack_policy=AckPolicy.NONE,
            filter_subject=f"$O.{blob.bucket}.C.{info['nuid']}",
            inactive_threshold=READ_SECONDS,
            mem_storage=True,
        )
        await self._js.add_consumer(stream, config)
        try:
            async with Puller(self._nc, stream, name, CHUNKS_IN_FLIGHT, lambda _: None) as puller:
                while left:
                    async with asyncio.timeout(READ_SECONDS):
                        delivery = await anext(puller)
                    take(delivery.data)
                    left -= 1
                    delivery.release()
        except TimeoutError:
            raise BusError(f"blob {blob.bucket}/{blob.name}: no chunk came for {READ_SECONDS:g} s") from None
        finally:
            await self._js.delete_consumer(stream, name)

    async def _info(self, bucket: str, name: str) -> dict[str, Any] | None:
        try:
            message = await self._js.get_last_msg(f"OBJ_{bucket}", _meta_subject(bucket, name), direct=True)
        except (NotFoundError, ObjectNotFoundError):
            return None
        except NoRespondersError as error:
            raise BusError(f"bucket {bucket} does not answer: `lightningbus provision` makes it") from error
        info: dict[str, Any] = json.loads(message.data or b"{}")
        return None if info.get("deleted") else info

    async def _write_info(self, bucket: str, name: str, info: dict[str, Any]) -> None:
        payload = json.dumps(info).encode()
        await self._publisher.publish(_meta_subject(bucket, name), payload, {"Nats-Rollup": "sub"}, PUBLISH_SECONDS)

    async def _purge(self, bucket: str, nuid: str) -> None:
        await self._js.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.C.{nuid}")


def _meta_subject(bucket: str, name: str) -> str:
    return _META.format(bucket=bucket, name=base64.urlsafe_b64encode(name.encode()).decode())


def _chunks(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield from (source[at : at + CHUNK_BYTES] for at in range(0, len(source), CHUNK_BYTES))
        return
    with source.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
