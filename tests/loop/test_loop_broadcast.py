"""A version that vLLM receives by broadcast is the one that it would have read from the file."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import to_builtins
from safetensors.torch import load_file, save_file

from bus import Bus
from learner.broadcast import Broadcaster
from learner.publish import WeightPublisher
from learner.settings import LearnerSettings
from schemas import subjects
from schemas.codec import encode
from schemas.events import Heartbeat, Offer, Reach
from tests.loop.conftest import Loop
from tests.loop.test_loop import node_at, sampled

pytestmark = pytest.mark.timeout(420)


def two_versions(loop: Loop) -> list[Path]:
    """The weights the run began with, and others."""
    weights = load_file(loop.directory / "model" / "model.safetensors")
    torch.manual_seed(1)
    other = {name: one + 0.05 * torch.randn_like(one) for name, one in weights.items()}
    paths = [loop.directory / f"broadcast-{number}.safetensors" for number in range(2)]
    for path, tensors in zip(paths, (weights, other), strict=True):
        save_file(tensors, path)
    return paths


class Published:
    """Versions, and what the node that serves them says of itself and answers."""

    def __init__(self, loop: Loop, bus: Bus) -> None:
        self._loop, self._bus = loop, bus

    async def __call__(
        self, publisher: WeightPublisher, path: Path
    ) -> tuple[Offer | None, Heartbeat, tuple[list[int], list[float]]]:
        last = await publisher.look()
        version, epoch = (last.version + 1, last.epoch) if last else (0, 1)
        await publisher.publish(path, version=version, epoch=epoch, step=version)
        assert publisher.last is not None
        node = await node_at(self._bus, version)
        asked = {"prompt": list(range(10, 40)), "logprobs": 0, "temperature": 0}
        _, ids, told, versions = await sampled(self._loop, node, "completions", **asked)
        assert versions == {version}
        return publisher.last.offer, node, (ids, told)

    def files(self, node: Heartbeat) -> list[Path]:
        """Of the version that a node serves."""
        return list(self._loop.directory.glob(f"runs/test/**/policy-{node.version:08d}.safetensors"))


async def test_what_is_broadcast_answers_as_what_is_fetched(loop: Loop) -> None:
    paths = two_versions(loop)
    settings = LearnerSettings.model_validate(
        {
            "model_path": "-",
            "checkpoints": loop.directory,
            "weights": {"broadcast": {"backend": "gloo", "seconds": 5}},
        }
    )
    async with Bus.connect(loop.bus) as bus, bus.fleet("inference") as nodes:
        published = Published(loop, bus)
        async with Broadcaster(settings, nodes.members) as broadcaster, asyncio.timeout(400):
            while not any(beat.state in ("stale", "ready") for beat in nodes.members()):
                await nodes.changed()
            by_file = WeightPublisher(bus, settings)
            fetched = [await published(by_file, path) for path in paths]
            await broadcaster.settled()
            by_broadcast = WeightPublisher(bus, settings, broadcaster=broadcaster)
            received = []
            for path in paths:
                received.append(await published(by_broadcast, path))
                assert published.files(received[-1][1]) == [], "what is broadcast is in no file"
                await broadcaster.settled()
            assert broadcaster.sent == 2
            ghost = {"reach": to_builtins(Reach(engine="gone", ranks=1, backends=("gloo",)))}
            held = received[-1][1].version
            beat = Heartbeat(
                role="inference", id="ghost", state="ready", model="policy", version=held, detail=ghost, sent_ns=1
            )
            await bus.nc.publish(subjects.heartbeat("inference", "ghost"), encode(beat))
            while "ghost" not in {one.id for one in nodes.members()}:
                await nodes.changed()
            awaited = await published(by_broadcast, paths[0])
            await broadcaster.settled()
            assert broadcaster.sent == 2
    offers = [offer for offer, _, _ in received]
    assert [offer for offer, _, _ in fetched] == [None, None] and offers[0] and offers[1]
    assert offers[0].group == offers[1].group and offers[0].meeting != offers[1].meeting
    for (_, _, (ids, told)), (_, _, (same, logprobs)) in zip(received, fetched, strict=True):
        assert ids == same
        np.testing.assert_allclose(told, logprobs, atol=1e-6)
    assert fetched[0][2] != fetched[1][2]
    offer, node, answer = awaited
    assert offer is not None and len(offer.seats) == 2 and published.files(node), "who waited in vain has fetched it"
    assert node.detail["reach"] == received[0][1].detail["reach"], "with the engine it had"
    assert answer[0] == fetched[0][2][0]
