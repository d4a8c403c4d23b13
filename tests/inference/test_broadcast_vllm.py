"""A version that a real vLLM receives by broadcast is the one that it would have read from the file."""

import asyncio
import json
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import torch
from msgspec import to_builtins
from safetensors.torch import load_file, save_file

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.publishing.broadcaster import Broadcaster
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import encode
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import BroadcastCapability, BroadcastPlan
from tests.inference.test_canary import seen, tiny_model

pytestmark = pytest.mark.e2e

Answer = tuple[list[int], list[float]]
"""Tokens, and their log-probabilities."""


def two_versions(directory: Path) -> list[Path]:
    """The model's weights, and others."""
    weights = load_file(tiny_model(directory / "model") / "model.safetensors")
    torch.manual_seed(1)
    other = {name: item + 0.05 * torch.randn_like(item) for name, item in weights.items()}
    paths = [directory / f"broadcast-{number}.safetensors" for number in range(2)]
    for path, tensors in zip(paths, (weights, other), strict=True):
        save_file(tensors, path)
    return paths


async def answer_of(at: Heartbeat) -> Answer:
    """What a node answers greedily, all of it by the version it says."""
    request = {"model": "policy", "prompt": list(range(10, 40)), "max_tokens": 24, "temperature": 0, "logprobs": 0}
    request |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    async with aiohttp.ClientSession() as http, http.post(f"{at.address}/v1/completions", json=request) as answer:
        text = await answer.text()
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert {event["weight_version"] for event in events} == {at.version}
    choices = [event["choices"][0] for event in events if event["choices"]]
    ids = [id for choice in choices for id in choice.get("token_ids") or ()]
    return ids, [item for choice in choices if choice["logprobs"] for item in choice["logprobs"]["token_logprobs"]]


async def published(bus: Bus, publisher: WeightPublisher, path: Path) -> tuple[BroadcastPlan | None, Heartbeat, Answer]:
    """A version, the node that serves it, and what it answers."""
    last = await publisher.refresh()
    version, epoch = (last.version + 1, last.epoch) if last else (0, 1)
    await publisher.publish(path, version=version, epoch=epoch, step=version)
    at = await seen(bus, "ready", version)
    assert publisher.last is not None
    return publisher.last.broadcast, at, await answer_of(at)


async def says_it_serves(bus: Bus, nodes: Fleet, version: int | None) -> None:
    """A node that is not there says that it could take part."""
    reach = {"broadcast": to_builtins(BroadcastCapability(engine="gone", ranks=1, backends=("gloo",)))}
    fields = {
        "state": "ready",
        "model": "policy",
        "version": version,
        "sent_at_ns": 1,
        "status": {"problem": "", **reach},
    }
    await bus.nc.publish(
        subjects.heartbeat("inference", "ghost"),
        encode(Heartbeat(role="inference", id="ghost", **fields)),  # type: ignore[arg-type]
    )
    while "ghost" not in {member.id for member in nodes.members()}:
        await nodes.wait_for_change()


async def test_what_is_broadcast_answers_as_what_is_fetched(bus: Bus, tmp_path: Path) -> None:
    paths = two_versions(tmp_path)
    broadcast = {"broadcast": {"backend": "gloo", "rendezvous_timeout_seconds": 5}}
    learner = LearnerSettings.model_validate({"model_path": "-", "checkpoint_dir": tmp_path, "weights": broadcast})
    settings = InferenceSettings(
        model_path=tmp_path / "model", id="n", dtype="float32", max_model_len=96, max_num_seqs=4, cpu_threads=1,
        work_dir=tmp_path / "work",
    )  # fmt: skip

    def files(at: Heartbeat) -> list[Path]:
        return list(tmp_path.glob(f"work/**/policy-{at.version:08d}.safetensors"))

    running = asyncio.create_task(node.run(bus, settings, asyncio.Event()))
    try:
        async with bus.fleet("inference") as nodes, Broadcaster(learner, nodes.members) as broadcaster:
            await seen(bus, "awaiting_weights")
            by_file = WeightPublisher(bus, learner)
            fetched = [await published(bus, by_file, path) for path in paths]
            await broadcaster.wait_idle()
            by_broadcast = WeightPublisher(bus, learner, broadcaster=broadcaster)
            received = []
            for path in paths:
                received.append(await published(bus, by_broadcast, path))
                assert files(received[-1][1]) == [], "what is broadcast is in no file"
                await broadcaster.wait_idle()
            assert broadcaster.num_sent == 2
            await says_it_serves(bus, nodes, received[-1][1].version)
            offer, at, answer = await published(bus, by_broadcast, paths[0])
            await broadcaster.wait_idle()
            assert broadcaster.num_sent == 2
            assert offer is not None and len(offer.participants) == 2 and files(at), "who waited in vain has fetched it"
    finally:
        await cancel_and_wait(running)
    offers = [item for item, _, _ in received]
    assert [item for item, _, _ in fetched] == [None, None] and offers[0] and offers[1]
    assert offers[0].group == offers[1].group and offers[0].rendezvous_key != offers[1].rendezvous_key
    for (_, _, (ids, reported)), (_, _, (same, logprobs)) in zip(received, fetched, strict=True):
        assert ids == same
        np.testing.assert_allclose(reported, logprobs, atol=1e-6)
    assert fetched[0][2] != fetched[1][2]
    assert at.status["broadcast"] == received[0][1].status["broadcast"], "with the engine it had"
    assert answer[0] == fetched[0][2][0]
