"""A weight version that the bus has lost is published again, whole, by the learner that made it."""

import asyncio
import shutil
from pathlib import Path
from struct import pack

import pytest
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import WeightManifest
from tests import tensorfiles
from tests.polling import HANG_SECONDS


async def newest(bus: Bus) -> WeightManifest | None:
    return await anext((manifest async for manifest, _ in WeightRegistry(bus, "policy").list_versions()), None)


async def fetch(bus: Bus, manifest: WeightManifest, path: Path) -> bytes:
    await bus.object_store.get(manifest.blobs[-1], path)
    return path.read_bytes()


@pytest.fixture
def settings(tmp_path: Path) -> LearnerSettings:
    (tmp_path / "checkpoints").mkdir()
    return LearnerSettings(model_path=tmp_path, run="run", checkpoint_dir=tmp_path / "checkpoints")


def write(path: Path, value: int) -> Path:
    return tensorfiles.write(path, {"a": ("F32", (4096,), bytes([value]) * 16384)})


async def test_a_version_says_how_far_it_is_from_the_one_before(
    bus: Bus, tmp_path: Path, settings: LearnerSettings
) -> None:
    publisher = WeightPublisher(bus, settings)
    changes = []
    for version, value in enumerate((1.0, 1.5, 1.5)):
        path = tensorfiles.write(tmp_path / str(version), {"a": ("F32", (4,), 4 * pack("<f", value))})
        await publisher.publish(path, version=version, epoch=1, step=version)
        assert publisher.last is not None
        changes.append(publisher.last.change)
    assert changes == [None, 0.5, 0.0]
    successor = WeightPublisher(bus, settings)
    await successor.refresh()
    await successor.publish(path, version=3, epoch=2, step=3)
    assert successor.last is not None and successor.last.change is None, "this process has not written version 2"


@pytest.mark.parametrize("loss", ["bus", "blob"])
async def test_a_version_that_the_bus_lost_is_published_again_and_the_next_one_follows_it(
    bus: Bus, nats: NatsServer, tmp_path: Path, settings: LearnerSettings, loss: str
) -> None:
    publisher, was_reset = WeightPublisher(bus, settings), asyncio.Event()
    for version in range(2):  # the second one is a delta, whose whole is lost too
        await publisher.publish(write(tmp_path / "weights", version), version=version, epoch=1, step=version)
    content = (tmp_path / "weights").read_bytes()
    (tmp_path / "weights").unlink()  # the checkpoint that held it is gone
    if loss == "bus":
        await nats.kill()
        shutil.rmtree(nats.directory / "jetstream")
        bus.reconnected.clear()
        await nats.start()
        await bus.reconnected.wait()
    else:
        for name in await bus.object_store.list_names(subjects.WEIGHT_BUCKET):
            await bus.object_store.delete(subjects.WEIGHT_BUCKET, name)
    keeping = asyncio.create_task(publisher.keep_published(was_reset))
    was_reset.set()
    try:
        async with asyncio.timeout(HANG_SECONDS):
            if loss == "bus":
                await bus.provision()  # later than the learner looks first
            while publisher.last is None or publisher.last.chain or (manifest := await newest(bus)) is None:
                await asyncio.sleep(0.05)
            assert (manifest.version, manifest.epoch, manifest.kind) == (1, 1, "full")
            assert await fetch(bus, manifest, tmp_path / "fetched") == content
            await publisher.publish(write(tmp_path / "weights", 2), version=2, epoch=1, step=2)
            assert (last := await newest(bus)) is not None and (last.version, last.parent) == (2, 1)
            sequence = (await bus.js.stream_info(subjects.WEIGHTS)).state.last_seq
            was_reset.set()
            await asyncio.sleep(0.2)
            assert (await bus.js.stream_info(subjects.WEIGHTS)).state.last_seq == sequence, "nothing is lost now"
    finally:
        await cancel_and_wait(keeping)


async def test_a_version_that_a_lagging_server_does_not_have_yet_is_not_published_again(
    bus: Bus, tmp_path: Path, settings: LearnerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any server of a cluster answers a Direct Get; only the leader knows what is lost."""
    publisher, was_reset = WeightPublisher(bus, settings), asyncio.Event()
    await publisher.publish(write(tmp_path / "weights", 0), version=0, epoch=1, step=0)
    sequence = (await bus.js.stream_info(subjects.WEIGHTS)).state.last_seq
    has_looked, get_last_msg = asyncio.Event(), bus.js.get_last_msg

    async def lagging(stream: str, subject: str, direct: bool | None = False) -> RawStreamMsg:
        if stream.startswith("OBJ_"):
            has_looked.set()
        if direct:
            raise NotFoundError
        return await get_last_msg(stream, subject, direct)

    monkeypatch.setattr(bus.js, "get_last_msg", lagging)
    keeping = asyncio.create_task(publisher.keep_published(was_reset))
    was_reset.set()
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await has_looked.wait()
            async with publisher._lock:  # it has looked
                state = (await bus.js.stream_info(subjects.WEIGHTS)).state
        assert (state.last_seq, keeping.done()) == (sequence, False)
    finally:
        await cancel_and_wait(keeping)


async def test_a_version_that_another_learner_has_replaced_is_not_published_again(
    bus: Bus, tmp_path: Path, settings: LearnerSettings
) -> None:
    first, second, was_reset = WeightPublisher(bus, settings), WeightPublisher(bus, settings), asyncio.Event()
    await first.publish(write(tmp_path / "weights", 0), version=0, epoch=1, step=0)
    await second.refresh()
    await second.publish(write(tmp_path / "weights", 0), version=0, epoch=2, step=0)
    keeping = asyncio.create_task(first.keep_published(was_reset))
    was_reset.set()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.shield(keeping)
        assert (last := await newest(bus)) is not None and last.epoch == 2
    except LearnerError:
        pytest.fail("the other learner's version is on the bus: nothing is to be done")
    finally:
        await cancel_and_wait(keeping)
