"""The subscriber against a real broker: versions of a model are applied once, in time, and only when verified."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference.weights import updater as module
from lightningbus.inference.weights.canary import Canary
from lightningbus.inference.weights.updater import WeightUpdater
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import Blob, KvCacheOutcome, ReleaseState, WeightManifest, WeightsActivated
from tests.polling import HANG_SECONDS


class Engine:
    """Remembers what it was given; takes part in no broadcast."""

    needs_swap_lock = True

    def __init__(self, canary: Canary | None = None) -> None:
        self.canary = canary
        self.heeded: list[ReleaseState] = []
        self.loaded: list[tuple[int, bytes]] = []
        self.changes: list[float | None] = []
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        """Closed: it does not come to an end with the next one."""
        self.gate.set()
        self.refuses: dict[int, Exception] = {}
        self.kv_cache: KvCacheOutcome = "kept"

    async def load_files(
        self, files: Sequence[Path], version: int, change: float | None = None, fingerprint: str = ""
    ) -> float:
        await self.gate.wait()
        if version in self.refuses:
            raise self.refuses[version]
        self.changes.append(change)
        self.loaded.append((version, b"+".join(path.read_bytes() for path in files)))
        return 0.0

    async def join_broadcast(self, manifest: WeightManifest) -> None:
        pass

    def on_release_state(self, release: ReleaseState) -> None:
        self.heeded.append(release)

    async def on_activated(self) -> None:
        self.changed.set()

    async def holds(self, version: int) -> None:
        """Wait for a version."""
        async with asyncio.timeout(HANG_SECONDS):
            while not self.loaded or self.loaded[-1][0] != version:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def following(bus: Any, directory: Path) -> AsyncIterator[tuple[WeightUpdater, Engine]]:
    engine = Engine()
    updater = WeightUpdater(bus, "node", "policy", directory / "node", engine)
    running = asyncio.create_task(updater.run())
    try:
        yield updater, engine
    finally:
        await cancel_and_wait(running)


async def publish(bus: Bus, directory: Path, version: int, model: str = "policy", **changes: Any) -> None:
    content = directory / f"{version}.safetensors"
    content.write_bytes(b"weights of version %d" % version * 1000)
    blob = await bus.object_store.put(subjects.WEIGHT_BUCKET, f"{model}-{version}", content)
    fields = {"blobs": (blob,), "epoch": 1, "step": version, "created_at_ns": 1, **changes}
    manifest = WeightManifest(run_id="run", model=model, version=version, **fields)
    await bus.publish(subjects.weights(model), manifest, msg_id=f"w{model}{version}")


async def test_a_late_joiner_takes_the_newest_version_and_then_every_new_one(bus: Bus, tmp_path: Path) -> None:
    for version in range(3):
        await publish(bus, tmp_path, version)
    async with following(bus, tmp_path) as (_, engine):
        await engine.holds(2)
        for version in range(3, 10):
            await publish(bus, tmp_path, version)
            await engine.holds(version)
    assert [version for version, _ in engine.loaded] == list(range(2, 10))
    assert all(content == b"weights of version %d" % version * 1000 for version, content in engine.loaded)


async def test_the_engine_is_told_how_far_a_version_is_from_the_loaded_one(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0)
    async with following(bus, tmp_path) as (_, engine):
        await engine.holds(0)
        for version, parent in ((1, 0), (2, 1), (4, 3)):
            await publish(bus, tmp_path, version, parent=parent, change=version / 100)
            await engine.holds(version)
    assert engine.changes == [None, 0.01, 0.02, None], "version 4 is 0.04 from version 3, which was not loaded"


async def test_a_node_says_what_became_of_the_kv_cache(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0)
    async with following(bus, tmp_path) as (_, engine), asyncio.timeout(HANG_SECONDS):
        await engine.changed.wait()
        last = await bus.get_last(subjects.WEIGHTS, subjects.activated("node"), WeightsActivated)
    assert last is not None and last[0].kv_cache == "kept"


async def test_adapters_come_with_the_base_they_are_added_to_which_is_fetched_once(bus: Bus, tmp_path: Path) -> None:
    base = await bus.object_store.put(subjects.WEIGHT_BUCKET, "policy-base", b"base")
    async with following(bus, tmp_path) as (_, engine):
        for version in range(2):
            local = await bus.object_store.put(subjects.WEIGHT_BUCKET, f"policy-{version}-1", b"adapters %d" % version)
            await publish(bus, tmp_path, version, kind="lora", blobs=(base, local))
            await engine.holds(version)
            await bus.object_store.delete(subjects.WEIGHT_BUCKET, "policy-base")  # no node needs it any more
    assert engine.loaded == [(0, b"base+adapters 0"), (1, b"base+adapters 1")]


class Behind:
    """A bus whose stream answers, a few times, as it was before the last publish."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self.behind = bus, 0
        self.js = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def get_last_msg(self, *arguments: Any, **named: Any) -> Any:
        self.behind -= 1
        if self.behind >= 0:
            raise NotFoundError
        return await self._bus.js.get_last_msg(*arguments, **named)


async def test_an_event_that_is_faster_than_its_stream_is_not_forgotten(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 3600.0)
    slow = Behind(bus)
    async with following(slow, tmp_path) as (_, engine):
        await publish(bus, tmp_path, 0)
        await engine.holds(0)
        slow.behind = 2
        await publish(bus, tmp_path, 1)
        await engine.holds(1)


async def test_a_blob_that_does_not_match_its_digest_is_refused_and_the_old_version_stays(
    bus: Bus, tmp_path: Path
) -> None:
    async with following(bus, tmp_path) as (subscriber, engine):
        await publish(bus, tmp_path, 0)
        await engine.holds(0)
        wrong = Blob(bucket=subjects.WEIGHT_BUCKET, name="policy-0", size=21000, sha256="0" * 64)
        await publish(bus, tmp_path, 1, blobs=(wrong,))
        async with asyncio.timeout(HANG_SECONDS):
            while not subscriber.problem:
                await asyncio.sleep(0.02)
        assert "weights not fetched" in subscriber.problem and engine.loaded[-1][0] == 0
        await publish(bus, tmp_path, 2)
        await engine.holds(2)
        assert subscriber.problem == ""


async def test_an_error_nobody_has_foreseen_costs_a_version_and_not_the_node(bus: Bus, tmp_path: Path) -> None:
    async with following(bus, tmp_path) as (subscriber, engine):
        await publish(bus, tmp_path, 0)
        await engine.holds(0)
        engine.refuses[1] = KeyError("model.embed_tokens.weight")
        await publish(bus, tmp_path, 1)
        async with asyncio.timeout(HANG_SECONDS):
            while "embed_tokens" not in subscriber.problem:
                await asyncio.sleep(0.02)
        await publish(bus, tmp_path, 2)
        await engine.holds(2)
