"""Versions by broadcast over gloo, to nodes with the stand-in for vLLM, which receives as vLLM's workers do.

`tests/e2e` does it with vLLM itself.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import to_builtins

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.weights.collective import (
    RendezvousTimeoutError,
    connect_store,
    create_store,
    init_group,
    missing_ranks,
    run_rendezvous,
)
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.engine.worker.broadcast_receiver import BroadcastReceiver, Rendezvous
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.publishing.broadcast_worker import bytes_of
from lightningbus.learner.publishing.broadcaster import FILE, Broadcaster, assign_ranks
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import encode
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.delta import fingerprint
from lightningbus.schemas.weights.events import BroadcastCapability, RankAssignment, WeightManifest
from tests.polling import HANG_SECONDS
from tests.tensorfiles import weights, write

STAND_IN = str(Path(__file__).resolve().parents[1] / "chaos" / "vllm.py")


class Learner:
    """Publishes and broadcasts versions of a model of several tensors."""

    def __init__(self, bus: Bus, fleet: Fleet, directory: Path, seconds: float) -> None:
        broadcast = {"backend": "gloo", "rendezvous_timeout_seconds": seconds}
        settings = {"model_path": "-", "checkpoint_dir": directory, "weights": {"broadcast": broadcast}}
        built = LearnerSettings.model_validate(settings)
        self.settings = built.weights.broadcast
        self.broadcaster = Broadcaster(built, fleet.members)
        self._publisher = WeightPublisher(bus, built, broadcaster=self.broadcaster)
        self._directory, self.sent = directory, list[WeightManifest]()

    async def publish(self) -> WeightManifest:
        """The next version; the broadcast, if there is one, goes on."""
        version = len(self.sent)
        contents = {  # of a dtype that the stand-in can read
            f"{part}.{name}": ("F16", shape, data)
            for part in range(8)
            for name, (_, shape, data) in weights(8 * version + part).items()
        }
        path = write(self._directory / "made.safetensors", contents)
        await self.broadcaster.wait_idle()
        await self._publisher.refresh()
        await self._publisher.publish(path, version=version, epoch=1, step=version)
        path.unlink()  # as the next step's would replace it
        assert self._publisher.last is not None
        self.sent.append(self._publisher.last)
        return self._publisher.last


@asynccontextmanager
async def learning(bus: Bus, directory: Path, seconds: float = 60) -> AsyncIterator[tuple[Learner, Fleet]]:
    """A learner that can broadcast, and the nodes it sees."""
    (directory / "learner").mkdir()
    async with bus.fleet("inference") as fleet:
        learner = Learner(bus, fleet, directory / "learner", seconds)
        async with learner.broadcaster:
            yield learner, fleet


@asynccontextmanager
async def serving(bus: Bus, directory: Path, id: str, *arguments: str) -> AsyncIterator[Path]:
    """A node; gives the directory of the files it fetches."""
    (directory / "model").mkdir(exist_ok=True)
    (directory / "model" / "config.json").write_text('{"vocab_size": 100}')
    settings = InferenceSettings(
        model_path=directory / "model",
        id=id,
        vllm_command=[sys.executable, STAND_IN],
        vllm_args=["--receives", *arguments],
        max_model_len=64,
        work_dir=directory / id,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(bus, settings, stop))
    try:
        yield directory / id / "weights" / "policy"
    finally:
        stop.set()
        await asyncio.wait({running}, timeout=HANG_SECONDS)
        await cancel_and_wait(running)


async def until(fleet: Fleet, met: Callable[[dict[str, Heartbeat]], bool]) -> dict[str, Heartbeat]:
    """Wait for what the nodes say of themselves."""
    async with asyncio.timeout(HANG_SECONDS):
        while not met(fields := {beat.id: beat for beat in fleet.members()}):
            await fleet.wait_for_change()
    return fields


async def served(fleet: Fleet, version: int, ids: str) -> dict[str, str]:
    """Wait until nodes serve a version; the life of each one's engine."""
    answer = await until(fleet, lambda answer: all(id in answer and answer[id].version == version for id in ids))
    return {id: answer[id].status["broadcast"]["engine"] for id in ids}


def fetched(directory: Path) -> list[int]:
    """The versions whose files a node has."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in directory.glob("*.safetensors"))


@pytest.mark.long
async def test_versions_go_to_all_who_are_ready_over_one_group_and_who_comes_late_fetches(
    bus: Bus, tmp_path: Path
) -> None:
    async with (
        learning(bus, tmp_path) as (learner, fleet),
        serving(bus, tmp_path, "a") as a,
        serving(bus, tmp_path, "b") as b,
    ):
        await learner.publish()
        lives = await served(fleet, 0, "ab")
        for version in (1, 2):
            await learner.publish()
            assert await served(fleet, version, "ab") == lives
        async with serving(bus, tmp_path, "c") as c:
            await served(fleet, 2, "c")
            await learner.publish()
            assert await served(fleet, 3, "ab") == lives
            await served(fleet, 3, "c")
            assert (fetched(a), fetched(b), fetched(c)) == ([0], [0], [2]), "nobody wrote what was sent"
            await learner.broadcaster.wait_idle()
    offers = [manifest.broadcast for manifest in learner.sent]
    assert learner.broadcaster.num_sent == 3 and offers[0] is None
    assert [[seat.node for seat in offer.participants] for offer in offers if offer] == [["a", "b"]] * 2 + [
        ["a", "b", "c"]
    ]
    assert [offer.address.rpartition(":")[0] for offer in offers if offer] == ["127.0.0.1"] * 3
    first, second, third = (offer.group for offer in offers if offer)
    assert first == second != third
    assert all(manifest.blobs for manifest in learner.sent), "each can be had without the learner, too"


@pytest.mark.long
async def test_what_cannot_be_sent_is_not_offered_and_the_group_stays(bus: Bus, tmp_path: Path) -> None:
    async with learning(bus, tmp_path) as (learner, fleet), serving(bus, tmp_path, "a") as a:
        await learner.publish()
        lives = await served(fleet, 0, "a")
        await learner.publish()
        assert await served(fleet, 1, "a") == lives
        await learner.broadcaster.wait_idle()
        file = tmp_path / "learner" / FILE
        file.unlink()
        file.mkdir()  # in the way of the next one, as a full disk would be
        assert (await learner.publish()).broadcast is None
        await served(fleet, 2, "a")
        file.rmdir()
        await learner.publish()
        await served(fleet, 3, "a")
        await learner.broadcaster.wait_idle()
        assert learner.broadcaster.num_sent == 2 and fetched(a)[-1] == 2


@pytest.mark.long
async def test_who_never_comes_is_waited_for_within_a_bound_and_not_again(bus: Bus, tmp_path: Path) -> None:
    reach = to_builtins(BroadcastCapability(engine="gone", ranks=1, backends=("gloo",)))

    async def ghost(version: int) -> None:
        beat = Heartbeat(
            role="inference",
            id="g",
            state="ready",
            model="policy",
            version=version,
            status={"broadcast": reach},
            sent_at_ns=1,
        )
        await bus.nc.publish(subjects.heartbeat("inference", "g"), encode(beat))
        await served(fleet, version, "g")

    async with learning(bus, tmp_path, seconds=2) as (learner, fleet), serving(bus, tmp_path, "a") as a:
        await learner.publish()
        lives = await served(fleet, 0, "a")
        await ghost(0)
        started = time.monotonic()
        manifest = await learner.publish()
        assert manifest.broadcast is not None and [seat.node for seat in manifest.broadcast.participants] == ["a", "g"]
        assert await served(fleet, 1, "a") == lives, "nothing was wrong with this engine"
        assert time.monotonic() - started >= 2 and fetched(a) == [1]
        await learner.broadcaster.wait_idle()
        assert learner.broadcaster.num_sent == 0
        learner.settings.rendezvous_timeout_seconds = HANG_SECONDS
        await ghost(1)
        manifest = await learner.publish()
        assert manifest.broadcast is not None and [seat.node for seat in manifest.broadcast.participants] == ["a"]
        assert await served(fleet, 2, "a") == lives and fetched(a) == [1]


async def test_of_half_a_broadcast_nothing_is_served_and_the_version_is_fetched(bus: Bus, tmp_path: Path) -> None:
    async with (
        learning(bus, tmp_path) as (learner, fleet),
        serving(bus, tmp_path, "a") as a,
        serving(bus, tmp_path, "b", "--dies-amid") as b,
    ):
        await learner.publish()
        lives = await served(fleet, 0, "ab")
        manifest = await learner.publish()
        assert manifest.broadcast is not None and len(manifest.broadcast.participants) == 2
        states: dict[str, str] = {}

        def have_left(answer: dict[str, Heartbeat]) -> bool:
            """Whether each was seen without a version; one may be back before the other has left."""
            for id, beat in answer.items():
                if beat.version is None:
                    states.setdefault(id, beat.state)
            return states.keys() == {"a", "b"}

        await until(fleet, have_left)
        assert set(states.values()) <= {"starting", "awaiting_weights"}
        again = await served(fleet, 1, "ab")
        assert not set(lives.values()) & set(again.values()), "an engine with half the weights is given up"
        assert (fetched(a), fetched(b)) == ([1], [1])
        await learner.broadcaster.wait_idle()
        assert learner.broadcaster.num_sent == 0


async def test_without_what_a_broadcast_needs_versions_are_fetched(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    settings = LearnerSettings.model_validate(
        {"model_path": "-", "checkpoint_dir": tmp_path, "weights": {"broadcast": {"backend": "nccl"}}}
    )
    async with Broadcaster(settings, list) as broadcaster:
        await broadcaster.wait_idle()
        publisher = WeightPublisher(bus, settings, broadcaster=broadcaster)
        for version in range(2):
            path = write(tmp_path / "made.safetensors", weights(version))
            await publisher.publish(path, version=version, epoch=1, step=version)
            assert publisher.last is not None and publisher.last.broadcast is None
    assert "weight versions go out by their files only: nccl needs a GPU, and torch finds none" in caplog.text


def together(*work: Callable[[], Any]) -> list[BaseException | None]:
    """Run at the same time, each as a rank would; what each ended with."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [item.exception() for item in [pool.submit(part) for part in work]]


def test_all_have_met_or_nobody_has() -> None:
    store = create_store("127.0.0.1", 0)
    others = [connect_store("127.0.0.1", store.port, HANG_SECONDS) for _ in range(2)]
    ranks = list(enumerate((store, *others)))
    met = together(*[lambda rank=rank, at=at: run_rendezvous(at, "m1", rank, 3, HANG_SECONDS) for rank, at in ranks])
    assert met == [None] * 3
    started = time.monotonic()
    ended = together(
        lambda: run_rendezvous(store, "m2", 0, 3, 0.5), lambda: run_rendezvous(others[0], "m2", 1, 3, HANG_SECONDS)
    )
    assert [type(error) for error in ended] == [RendezvousTimeoutError] * 2
    assert time.monotonic() - started < HANG_SECONDS / 2, "who would have waited longer learns of it at once"
    assert missing_ranks(store, "m2", 3) == [2]
    with pytest.raises(RendezvousTimeoutError):
        run_rendezvous(others[1], "m2", 2, 3, HANG_SECONDS)  # too late, although it is the last one


def test_what_is_not_what_was_published_is_known(tmp_path: Path) -> None:
    path = write(
        tmp_path / "w.safetensors", {**weights(0, 1001), "empty": ("F32", (0, 4), b""), "one": ("I8", (), b"7")}
    )
    other = write(
        tmp_path / "o.safetensors", {**weights(1, 1001), "empty": ("F32", (0, 4), b""), "one": ("I8", (), b"7")}
    )
    store = create_store("127.0.0.1", 0)
    receiver, group, got = BroadcastReceiver(), list[Any](), dict[str, Any]()

    def sends(meeting: str, source: Path) -> None:
        header, tensors = bytes_of(source)
        store.set(f"{meeting}/header", header)  # type: ignore[arg-type]
        run_rendezvous(store, meeting, 0, 2, HANG_SECONDS)
        if not group:
            group.append(init_group("gloo", store, "g", 0, 2, "127.0.0.1", HANG_SECONDS))
        group[0].send(tensors)

    def receives(meeting: str) -> None:
        at = Rendezvous(f"127.0.0.1:{store.port}", "g", "gloo", meeting, rank=1, world=2, seconds=HANG_SECONDS)
        receiver.join(at, 0)
        receiver.receive(fingerprint(path), path.stat().st_size, got.update)

    assert together(lambda: sends("m1", path), lambda: receives("m1")) == [None, None]
    assert {name: tuple(item.shape) for name, item in got.items()} == {
        "a": (500,),
        "b": (501,),
        "empty": (0, 4),
        "one": (),
    }
    assert got["a"].view(torch.uint8).numpy().tobytes() == weights(0, 1001)["a"][2]
    sent, received = together(lambda: sends("m2", other), lambda: receives("m2"))
    assert sent is None and isinstance(received, ValueError) and "not those that were published" in str(received)
    with pytest.raises(ValueError, match="no broadcast group was joined"):
        receiver.receive(fingerprint(path), path.stat().st_size, got.update)


def beat(id: str, **changes: Any) -> Heartbeat:
    reach = to_builtins(BroadcastCapability(engine=f"e{id}", ranks=2, backends=("nccl", "gloo")))
    fields = {"role": "inference", "state": "ready", "model": "policy", "version": 4, "status": {"broadcast": reach}}
    return Heartbeat(id=id, sent_at_ns=1, **{**fields, **changes})  # type: ignore[arg-type]


def test_a_seat_is_for_who_serves_the_version_before() -> None:
    def seated(beats: Sequence[Heartbeat], **changes: Any) -> tuple[RankAssignment, ...]:
        return assign_ranks(beats, **{"model": "policy", "backend": "nccl", "base_version": 4, **changes})

    fit = [beat("a"), beat("b")]
    assert [(seat.node, seat.engine, seat.rank, seat.ranks) for seat in seated(fit)] == [
        ("a", "ea", 1, 2),
        ("b", "eb", 3, 2),
    ]
    others = (
        {"version": 3},
        {"version": None},
        {"state": "suspect"},
        {"state": "awaiting_weights"},
        {"model": "other"},
        {"status": {}},
        {"status": {"broadcast": {"engine": "e", "ranks": 1, "backends": ["gloo"]}}},
        {"status": {"broadcast": {"engine": "e", "ranks": 0, "backends": ["nccl"]}}},
    )
    for changes in others:
        assert seated([beat("x", **changes), *fit]) == seated(fit), changes
    assert [seat.node for seat in seated(fit, cooldown=["ea"])] == ["b"]


def test_every_address_is_none_to_meet_at() -> None:
    with pytest.raises(ValueError, match="needs the one address"):
        LearnerSettings.model_validate({"model_path": "-", "weights": {"broadcast": {"host": "0.0.0.0"}}})


def test_adapters_are_not_broadcast() -> None:
    with pytest.raises(ValueError, match="adapters are small"):
        LearnerSettings.model_validate(
            {"model_path": "-", "lora": {"lora_rank": 4}, "weights": {"broadcast": {"backend": "gloo"}}}
        )
