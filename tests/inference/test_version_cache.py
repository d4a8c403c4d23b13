"""Versions from a learner's publisher to nodes, by each transport: whole ones, and between them what changed."""

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError, ChecksumMismatchError
from lightningbus.bus.weights.transports.base import object_key
from lightningbus.bus.weights.transports.factory import open_transport
from lightningbus.inference.weights import updater as subscriber_module
from lightningbus.inference.weights.updater import WeightUpdater
from lightningbus.learner.publishing.publisher import BUCKET, WeightPublisher, needs_full_weights
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import Blob, WeightManifest
from tests.inference.test_updater import Engine, following
from tests.polling import HANG_SECONDS
from tests.tensorfiles import stepped, weights, write


@pytest.fixture(params=["bus", "file", "s3"])
def by(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The settings of each transport, with a server that speaks S3 where one is needed."""
    if request.param != "s3":
        yield {"transport": request.param, "location": str(tmp_path / "shared") if request.param == "file" else ""}
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "very-secret",
        }.items():
            monkeypatch.setenv(name, value)
        with urllib.request.urlopen(urllib.request.Request(f"{url}/storage", method="PUT")) as response:
            assert response.status == 200
        yield {"transport": "s3", "location": f"s3://storage/{tmp_path.name}"}
    finally:
        server.stop()


class Learner:
    """Publishes a model that changes a little with each version, and remembers what each was."""

    def __init__(self, bus: Any, directory: Path, by: dict[str, str], **changes: Any) -> None:
        self.settings = LearnerSettings.model_validate(
            {
                "model_path": "model",
                "checkpoint_dir": directory / "learner",
                "weights": {**by, "full_interval": 4},
                **changes,
            }
        )
        self.settings.checkpoint_dir.mkdir(exist_ok=True)
        self.transport = open_transport(bus, self.settings.weights.transport, self.settings.weights.location)
        self._bus, self._directory, self._weights, self.files = bus, directory, weights(0), list[Path]()
        self.sent = list[WeightManifest]()
        self.wanted = False
        self.starts()

    def starts(self) -> None:
        """A publisher that knows of no version, as after a restart."""
        self._publisher = WeightPublisher(self._bus, self.settings, lambda: self.wanted)

    async def publish(self, epoch: int = 1, again: bool = False) -> Path:
        """The next version, or the last one again; returns its file."""
        if not again:
            self._weights = stepped(self._weights, len(self.files))
            self.files.append(write(self._directory / f"{len(self.files)}.safetensors", self._weights))
        version = len(self.files) - 1
        await self._publisher.refresh()
        await self._publisher.publish(self.files[-1], version=version, epoch=epoch, step=version)
        assert self._publisher.last is not None
        self.sent.append(self._publisher.last)
        return self.files[-1]

    def right(self, engine: Engine) -> bool:
        """Whether all an engine was given are the versions it was told, to the bit."""
        return all(content == self.files[version].read_bytes() for version, content in engine.loaded)


async def says(node: WeightUpdater, words: str) -> None:
    """Wait until a node says what is wrong."""
    async with asyncio.timeout(HANG_SECONDS):
        while words not in node.problem:
            await asyncio.sleep(0.02)


async def test_followers_late_joiners_and_those_who_skip_hold_every_version_to_the_bit(
    bus: Bus, tmp_path: Path, by: dict[str, str]
) -> None:
    learner = Learner(bus, tmp_path, by, keep_weight_versions=2)
    async with AsyncExitStack() as nodes:
        _, follows = await nodes.enter_async_context(following(bus, tmp_path / "follows"))
        _, skips = await nodes.enter_async_context(following(bus, tmp_path / "skips"))
        _, naps = await nodes.enter_async_context(following(bus, tmp_path / "naps"))
        for version in range(8):
            await learner.publish()
            await follows.holds(version)
            for item, busy_after in ((skips, 0), (naps, 4)):
                if version == busy_after:
                    await item.holds(version)
                    item.gate.clear()  # busy with the next one until the last is out
        for item in (skips, naps):
            item.gate.set()
            await item.holds(7)
        _, joins = await nodes.enter_async_context(following(bus, tmp_path / "joins"))
        await joins.holds(7)
    assert [manifest.kind for manifest in learner.sent] == ["full", *["delta"] * 3, "full", *["delta"] * 3]
    assert [len(manifest.chain) for manifest in learner.sent] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(entry.blobs[0].size < 0.1 * learner.files[0].stat().st_size for entry in learner.sent if entry.chain)
    open_items = [[version for version, _ in entry.loaded] for entry in (follows, skips, naps, joins)]
    assert (open_items[0], open_items[3]) == (list(range(8)), [7])
    assert open_items[1][0] == 0 and open_items[1][-1] == 7 and len(open_items[1]) < 5, (
        "from a chain that is over into the next"
    )
    assert {4, 7} < set(open_items[2]) and len(set(open_items[2]) & {5, 6}) == 1, "two links of a chain at once"
    assert all(map(learner.right, (follows, skips, naps, joins)))
    kept = [f"policy-00000{name}" for name in ("4-1", "5-1-delta", "6-1-delta", "7-1-delta")]
    assert await learner.transport.list_names(BUCKET) == kept, "the last two, and what they are built upon"
    (left,) = (tmp_path / "joins" / "node").iterdir()
    assert left.read_bytes() == learner.files[7].read_bytes(), "nothing but the file that is served"
    assert "secret" not in repr(learner.sent)


async def test_who_holds_the_version_before_needs_no_whole_one_even_from_a_learner_that_has_begun_anew(
    bus: Bus, tmp_path: Path
) -> None:
    learner = Learner(bus, tmp_path, {})
    async with following(bus, tmp_path) as (_, engine):
        for version in range(2):
            await learner.publish()
            await engine.holds(version)
        learner.starts()
        await learner.publish(epoch=2, again=True)
        assert learner.sent[-1].kind == "full", "what a learner claims can be had by itself"
        await learner.transport.delete(BUCKET, learner.sent[-1].blobs[0].name)
        await learner.publish(epoch=2)
        assert learner.sent[-1].kind == "delta" and learner.sent[-1].chain[0].version == 1
        await engine.holds(2)
    assert learner.right(engine)


async def test_a_node_whose_own_file_is_not_what_it_was_starts_from_the_whole_one(bus: Bus, tmp_path: Path) -> None:
    learner = Learner(bus, tmp_path, {})
    async with following(bus, tmp_path) as (node, engine):
        for version in range(2):
            await learner.publish()
            await engine.holds(version)
        kept = tmp_path / "node" / "policy-00000001.safetensors"
        kept.write_bytes(write(tmp_path / "other", weights(7)).read_bytes())
        await learner.publish()
        await engine.holds(2)
        assert learner.sent[-1].kind == "delta" and node.problem == ""
    assert learner.right(engine)


@pytest.mark.parametrize("damage", ["missing", "other bytes", "other anchor"])
async def test_of_a_broken_chain_nothing_is_served_and_a_whole_version_is_asked_for(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(subscriber_module, "RECHECK_SECONDS", 0.1)
    learner = Learner(bus, tmp_path, {})
    for _ in range(3):
        await learner.publish()
    name = learner.sent[1].blobs[0].name
    if damage == "missing":
        await bus.object_store.delete(BUCKET, name)
    elif damage == "other bytes":
        await bus.object_store.put(BUCKET, name, b"x" * learner.sent[1].blobs[0].size)
    else:
        await bus.object_store.put(BUCKET, learner.sent[0].blobs[0].name, tmp_path / "2.safetensors")
    words = {"missing": "is not on the bus", "other bytes": "hashes to", "other anchor": "hashes to"}[damage]
    async with following(bus, tmp_path) as (node, engine):
        await says(node, words)
        assert engine.loaded == [] and node.needs_full_weights and node.version is None
        detail = {"needs_full_weights": node.needs_full_weights}
        learner.wanted = needs_full_weights(
            Heartbeat(
                role="inference", id="node", state="awaiting_weights", model="policy", status=detail, sent_at_ns=1
            ),
            "policy",
        )
        await learner.publish()
        await engine.holds(3)
        assert learner.sent[-1].kind == "full" and not node.needs_full_weights and node.problem == ""
    assert learner.right(engine)


async def test_a_file_outside_the_bus_is_verified_and_stays_in_its_place(
    bus: Bus, tmp_path: Path, by: dict[str, str]
) -> None:
    via = open_transport(bus, by["transport"], by["location"])  # type: ignore[arg-type]
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 80_000)  # several parts of an upload
    blob = await via.put(BUCKET, "policy-1", source)
    await via.get(blob, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == source.read_bytes()
    wrong = Blob(bucket=BUCKET, name="policy-1", size=blob.size, sha256="0" * 64)
    short = Blob(bucket=BUCKET, name="policy-1", size=100, sha256=blob.sha256)
    for bad, words in ((wrong, "hashes to"), (short, "not 100")):
        with pytest.raises(ChecksumMismatchError, match=words):
            await via.get(bad, tmp_path / "bad")
    await via.delete(BUCKET, "policy-1")
    await via.delete(BUCKET, "policy-1")
    with pytest.raises(BusError, match="expired"):
        await via.get(blob, tmp_path / "bad")
    assert await via.list_names(BUCKET) == [] and not (tmp_path / "bad").exists()
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"
    with pytest.raises(BusError, match="no name of a blob"):
        object_key(BUCKET, "../policy-1")


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"transport": "file"}, "needs location: a directory"),
        ({"transport": "file", "location": "s3://b/p"}, "needs location: a directory"),
        ({"transport": "s3", "location": "somewhere"}, "needs location: s3://bucket/prefix"),
        ({"transport": "s3", "location": "s3://key:secret@bucket/p"}, "AWS_ACCESS_KEY_ID"),
        ({"location": "somewhere"}, "the bus has its own"),
    ],
)
def test_a_transport_that_is_set_wrongly_is_one_sentence(weights: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LearnerSettings.model_validate({"model_path": "model", "weights": weights})
