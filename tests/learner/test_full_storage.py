"""A learner on a bus whose server has no storage left: it says so, goes on once there is room, and stops when asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.errors import PublishFailure, StorageFullError, classify
from lightningbus.bus.streams import provisioning
from lightningbus.bus.streams.specs import BUCKET, STREAMS
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.learner import run as run_learner
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from tests.learner.conftest import settings_for, tiny_model
from tests.learner.test_demonstrations import LINES, supervised, write_lines
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration
MIB = 1024 * 1024
LIMIT_MIB = 24
FILLER = f"$O.{subjects.WEIGHT_BUCKET}.C.filler"


@pytest.fixture
async def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    """A bus of small streams on a server of little storage."""
    streams = tuple(replace(each, max_bytes=MIB if (each.max_bytes or 0) > 0 else each.max_bytes) for each in STREAMS)
    monkeypatch.setattr(provisioning, "STREAMS", streams)
    store = json.dumps(str(tmp_path / "nats" / "jetstream"))
    limits = f"jetstream {{ store_dir: {store}, max_memory_store: 256MB, max_file_store: {LIMIT_MIB}MB }}"
    server = NatsServer(tmp_path / "nats", extra_config=limits)
    await server.start()
    try:
        async with Bus.connect(server.url) as bus:
            await bus.provision()
            yield bus
    finally:
        await server.stop()


async def fill(bus: Bus) -> None:
    """Take all storage that is left, to the last KiB."""
    for size in (MIB, 64 * 1024, 1024):
        with pytest.raises(StorageFullError, match="max_file_store"):
            while True:
                await bus.publish_bytes(FILLER, bytes(size), {}, timeout=0.3)


async def make_room(bus: Bus) -> None:
    await bus.js.purge_stream(BUCKET, subject=FILLER)


@pytest.fixture
def settings(model_path: Path, tmp_path: Path) -> LearnerSettings:
    (tmp_path / "tasks.jsonl").write_text('{"id": "q", "input": 1}\n')
    return settings_for(
        model_path, tasks=tmp_path / "tasks.jsonl", checkpoint_dir=tmp_path / "checkpoints", group_size=2,
        groups_per_step=1, max_steps=1,
    )  # fmt: skip


async def wait_for_status(bus: Bus, sentence: str) -> None:
    async with bus.fleet("learner") as learners:
        while not any(sentence in str(beat.status.get("bus", "")) for beat in learners.members()):
            await learners.wait_for_change()


async def stop_without_storage(bus: Bus, settings: LearnerSettings) -> None:
    """Run a learner until it waits for storage, and stop it by one signal."""
    stop = asyncio.Event()
    learner = asyncio.create_task(run_learner(bus, settings, stop))
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await wait_for_status(bus, "raise max_file_store")
            stop.set()
            await learner
    finally:
        await cancel_and_wait(learner)


async def test_a_learner_without_storage_says_so_and_one_signal_stops_it(small: Bus, settings: LearnerSettings) -> None:
    await fill(small)
    await stop_without_storage(small, settings)
    assert not small.storage_problem


async def test_a_learner_without_storage_goes_on_once_there_is_room(
    small: Bus, settings: LearnerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightningbus.bus.jetstream.object_store.PUBLISH_SECONDS", 0.5)
    await fill(small)
    has_expired, publish = asyncio.Event(), small._publisher.publish

    async def spy(*arguments: Any) -> int:
        try:
            return await publish(*arguments)
        except StorageFullError:
            has_expired.set()
            raise

    monkeypatch.setattr(small._publisher, "publish", spy)
    learner = asyncio.create_task(run_learner(small, settings, asyncio.Event()))
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await wait_for_status(small, "raise max_file_store")
            await has_expired.wait()
            await make_room(small)
            while [manifest.version async for manifest, _ in WeightRegistry(small, "policy").list_versions()] != [0]:
                assert not learner.done(), learner
                await asyncio.sleep(0.1)
    finally:
        await cancel_and_wait(learner)


async def test_a_learner_whose_versions_fill_the_storage_stops_between_two_of_them(small: Bus, tmp_path: Path) -> None:
    room = f"{FILLER}-room"
    await small.publish_bytes(room, bytes(MIB), {}, timeout=HANG_SECONDS)
    await fill(small)
    await small.js.purge_stream(BUCKET, subject=room)
    model = tiny_model(tmp_path / "model", vocab_size=320)
    settings = supervised(
        model, write_lines(tmp_path / "chats.jsonl", LINES), checkpoint_dir=tmp_path / "checkpoints", max_steps=1000,
        keep_weight_versions=1000, weights={"full_interval": 1},
    )  # fmt: skip
    await stop_without_storage(small, settings)
    assert [manifest.version async for manifest, _ in WeightRegistry(small, "policy").list_versions()] != []


@pytest.mark.parametrize(("code", "number"), [(503, 10023), (500, 10047), (400, 10002)])
def test_limits_of_server_and_account_are_no_storage(code: int, number: int) -> None:
    assert classify({"code": code, "err_code": number, "description": "any"}) is PublishFailure.NO_STORAGE
