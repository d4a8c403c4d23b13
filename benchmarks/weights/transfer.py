"""A version from one disk to another: whole and as what changed, by each transport; no engine, no learner."""

import asyncio
import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.results import Result
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import free_port, nats_server
from lightningbus.bus.weights.transports.base import Transport
from lightningbus.bus.weights.transports.factory import open_transport
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.delta import apply_deltas, encode_delta

SIZES = {"0.5M": 500_000, "5M": 5_000_000, "50M": 50_000_000, "0.5B": 494_000_000}
"""Parameters, in bf16."""
PIECE = 2048 * 2048
STEP = 0.8e-6
"""Largest change of a weight in fp32, as Adam's at a learning rate of about 1e-6: 1.8 % of N(0, 0.02) become others."""
NUM_ROUNDS = 3
"""A figure is the best of so many: the disk still writes what was made before the first."""
SEVERAL = 100_000_000
"""Parameters up to which transports, too, have more than one round."""
PEER_SECONDS, PEER_RATE = 30.0, 5e6
"""nats-py's Object Store is given up after so long, and a second more for so many bytes."""


def written(place: Path, parameters: int) -> tuple[Path, Path, float]:
    """Two versions of a model of random weights, and the share of elements that are not the same; a piece at a time."""
    rows = [PIECE] * (parameters // PIECE) + [parameters % PIECE] * bool(parameters % PIECE)
    header, at, changed = dict[str, object](), 0, 0
    for number, length in enumerate(rows):
        header[f"layers.{number:04d}"] = {"dtype": "BF16", "shape": [length], "data_offsets": [at, at + 2 * length]}
        at += 2 * length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    paths = place / "first.safetensors", place / "second.safetensors"
    with paths[0].open("wb") as first, paths[1].open("wb") as second:
        for file in (first, second):
            file.write(len(text).to_bytes(8, "little") + text)
        for length in rows:
            weights = rng.standard_normal(length, np.float32) * np.float32(0.02)
            moved = weights + rng.uniform(-STEP, STEP, length).astype(np.float32)
            before, after = _bf16(weights), _bf16(moved)
            changed += int(np.count_nonzero(before != after))
            first.write(before.data)
            second.write(after.data)
    return *paths, changed / parameters


def _bf16(
    values: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint16]]":
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


@contextmanager
def s3_server() -> Iterator[str]:
    """A server that speaks S3, in a process of its own; the environment says where. Returns a place in it."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    before = {name: os.environ.get(name) for name in names}
    url = f"http://127.0.0.1:{port}"
    os.environ.update(zip(names, (url, "true", "us-east-1", "bench", "bench"), strict=True))
    try:
        for attempt in range(100):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{url}/bench", method="PUT")).close()
                break
            except OSError:
                if attempt == 99 or process.poll() is not None:
                    raise
                time.sleep(0.2)
        yield "s3://bench/weights"
    finally:
        process.terminate()
        process.wait()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@asynccontextmanager
async def transports(place: Path) -> AsyncIterator[tuple[Bus, dict[str, Transport]]]:
    """A broker and every transport."""
    with s3_server() as s3:
        async with nats_server(place / "nats") as server, Bus.connect(server.url) as bus:
            await bus.provision()
            yield (
                bus,
                {
                    "bus": bus.object_store,
                    "file": open_transport(bus, "file", str(place / "shared")),
                    "s3": open_transport(bus, "s3", s3),
                },
            )


async def best(work: Callable[[], Awaitable[object]], times: int, output: Path | None = None) -> float:
    """The shortest of some times, in seconds; each makes a new file ``output``, as each version has one of its own."""
    seconds = []
    for _ in range(times):
        if output is not None:
            output.unlink(missing_ok=True)
        started = time.monotonic()
        await work()
        seconds.append(time.monotonic() - started)
    return min(seconds)


async def measure(name: str, place: Path) -> list[Result]:
    """One size; see the module."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    parameters = SIZES[name]
    first, second, share = await asyncio.to_thread(written, place, parameters)
    times, size = 3 if parameters <= SEVERAL else 1, second.stat().st_size
    delta, out = place / "delta", place / "out.safetensors"

    async def encode() -> None:
        assert await asyncio.to_thread(encode_delta, first, second, delta, size)

    async def applied() -> None:
        await asyncio.to_thread(apply_deltas, first, [delta], out)

    making, applying = await best(encode, NUM_ROUNDS, delta), await best(applied, NUM_ROUNDS, out)
    assert await asyncio.to_thread(filecmp.cmp, out, second, False), "what was put together is what was published"
    copy = place / "copy"
    copying = await best(lambda: asyncio.to_thread(shutil.copyfile, second, copy), NUM_ROUNDS, copy)
    results = [
        Result(f"{name} parameters, whole: size", size / 1e6, "MB"),
        Result(
            f"{name} parameters, delta: size", delta.stat().st_size / 1e6, "MB", ceiling=size / 1e6,
            note=f"{100 * share:.1f} % of elements are others; ceiling: whole",
        ),
        Result(f"{name} parameters, delta: made", making, "s", copying, note="ceiling: a plain copy of the whole file"),
        Result(f"{name} parameters, delta: applied", applying, "s", copying),
    ]  # fmt: skip
    async with transports(place) as (bus, ways):
        peer = await object_store(bus, second, place / "peer", times)
        for way, via in ways.items():

            async def sent(source: Path, via: Transport = via) -> None:
                blob = await via.put(subjects.WEIGHT_BUCKET, f"bench-{source.name}", source)
                await via.get(blob, place / "arrived")

            whole = await best(lambda sent=sent: sent(second), times)  # type: ignore[misc]
            part = making + applying + await best(lambda sent=sent: sent(delta), times)  # type: ignore[misc]
            results += [
                Result(f"{name} parameters, {way}, whole: disk to disk", whole, "s", copying, peer),
                Result(f"{name} parameters, {way}, delta: disk to disk", part, "s", copying, peer),
            ]
            for source in (second, delta):
                await via.delete(subjects.WEIGHT_BUCKET, f"bench-{source.name}")
    shutil.rmtree(place)
    return results


async def object_store(bus: Bus, source: Path, arrived: Path, times: int) -> float | None:
    """nats-py's own Object Store with the whole file, in seconds; None where it did not come to an end."""
    store = await bus.js.create_object_store("peer")

    async def sent() -> None:
        with source.open("rb") as file:
            await store.put("weights", file)
        with arrived.open("wb") as file:
            await store.get("weights", writeinto=file)
        assert arrived.stat().st_size == source.stat().st_size

    try:
        async with asyncio.timeout(times * (PEER_SECONDS + source.stat().st_size / PEER_RATE)):
            return await best(sent, times)
    except Exception as error:  # of whatever kind: it is the peer's figure that is missing
        print(f"nats-py's Object Store: {error!r}")
        return None
    finally:
        await bus.js.delete_object_store("peer")
