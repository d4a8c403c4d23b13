"""A model of a node, its canary and a whole node on an engine in memory, without HTTP to an engine."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.node_state import NodeEvent
from lightningbus.inference.engine.base import BroadcastContent, Engine, EngineError, EngineRejectedError
from lightningbus.inference.engine.peft import write_directory
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.node_model import NodeModel
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.weights.canary import NOT_FINITE, EngineCanary
from lightningbus.schemas.weights.events import (
    BroadcastPlan,
    CanaryPrompt,
    CanarySpec,
    RankAssignment,
    WeightManifest,
)
from tests.inference.engine_contract import check_engine
from tests.inference.fake_engine import FakeEngine
from tests.inference.test_node_models import running
from tests.inference.test_version_registry import adapters

PROMPT = [5, 6, 7, 8]
SPEC = CanarySpec(
    prompts=(
        CanaryPrompt(ids=np.array(PROMPT, "<u4").tobytes(), logprobs=np.full(len(PROMPT) - 1, -1.0, "<f4").tobytes()),
    ),
    max_tokens=4, max_kl=0.1, min_entropy=0.0, max_entropy=9.0, max_length_ratio=9.0,
)  # fmt: skip


def model_of(bus: Bus, engine: Engine, **settings: Any) -> NodeModel:
    checked = InferenceSettings.model_validate({"model_path": "m", **settings})
    return NodeModel(bus, "n", "policy", checked, engine)


async def test_the_fake_engine_refuses_what_the_contract_says(tmp_path: Path) -> None:
    write_directory(adapters(tmp_path / "a"), tmp_path / "peft", 2)
    await check_engine(FakeEngine(is_running=True), tmp_path / "peft", PROMPT)


async def test_weights_are_loaded_in_a_pause_and_the_kv_cache_is_kept_while_they_move_little(
    bus: Bus, tmp_path: Path
) -> None:
    engine, file = FakeEngine(is_running=True), tmp_path / "weights"
    file.touch()
    model = model_of(bus, engine, kv_cache_on_swap="auto", kv_cache_max_change=0.1)
    await model.load_files([file], 1)
    assert (model.served.version, model.kv_cache) == (1, "recomputed")
    await model.load_files([file], 2, change=0.01)
    assert (model.served.version, model.kv_cache) == (2, "kept")
    assert engine.operations == ["pause and recompute", "load 1", "resume", "pause", "load 2", "resume"]


async def test_an_engine_that_may_hold_half_of_a_version_stays_paused(bus: Bus, tmp_path: Path) -> None:
    engine = FakeEngine(is_running=True)
    model = model_of(bus, engine)
    with pytest.raises(EngineRejectedError):
        await model.load_files([tmp_path / "missing"], 1)
    assert model.served.version is None and "resume" not in engine.operations, "until its node stops it"


async def test_a_broadcast_is_joined_by_the_engine_it_names_once_and_else_fetched_as_files(bus: Bus) -> None:
    engine = FakeEngine(is_running=True)
    model = model_of(bus, engine)

    def manifest(key: str, engine_id: str) -> WeightManifest:
        plan = BroadcastPlan(
            backend="gloo", address="127.0.0.1:1", group="g", rendezvous_key=key, size=10,
            rendezvous_timeout_seconds=1.0, participants=(RankAssignment(node="n", engine=engine_id, rank=1, ranks=1),),
        )  # fmt: skip
        return WeightManifest(
            run_id="r", model="policy", version=7, blobs=(), epoch=1, step=0, created_at_ns=1, fingerprint="f",
            broadcast=plan,
        )  # fmt: skip

    assert await model.join_broadcast(manifest("first", "another engine")) is None
    assert await model.join_broadcast(manifest("second", "run1")) is None, "nobody else came"
    engine.open_rendezvous = {"second", "third"}
    assert await model.join_broadcast(manifest("second", "run1")) is None, "it is not joined again"
    assert await model.join_broadcast(manifest("third", "run1")) is not None
    assert engine.loaded == [BroadcastContent("f", 10)] and model.served.version == 7
    assert engine.operations[0] == "join as rank 1"


@pytest.mark.parametrize(
    ("logprob", "reason", "is_tainted"),
    [(-1.0, "", False), (-3.0, "k3-KL to the learner is", False), (math.nan, NOT_FINITE, True)],
)
async def test_a_canary_judges_what_the_engine_scores(logprob: float, reason: str, is_tainted: bool) -> None:
    engine, events = FakeEngine(is_running=True), list[NodeEvent]()
    engine.logprob = logprob

    async def transition(event: NodeEvent) -> None:
        events.append(event)

    canary = EngineCanary(engine, ServedModel("policy"), transition)
    await canary.drain_traffic()
    result = await canary.run(SPEC, 1, None)
    assert result.reason.startswith(reason) and bool(result.reason) == bool(reason)
    assert result.is_kv_cache_tainted == is_tainted and events == ["canary_started"]
    unknown = await EngineCanary(engine, ServedModel("another"), transition).run(SPEC, 1, None)
    assert unknown.reason == "there is no model another"
    with pytest.raises(EngineError, match="not finite"):
        await canary.restart_engine()
    with pytest.raises(EngineError, match="does not answer"):
        await canary.run(SPEC, 1, None)


async def test_a_whole_node_serves_and_restarts_an_engine_in_memory(bus: Bus, tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.refused_versions = {2}
    async with running(bus, tmp_path, open_engine=lambda settings: engine) as at:
        await at.publish("policy", 1, is_whole=True)
        beat = await at.beat(lambda beat: beat.state == "ready" and beat.version == 1)
        assert (beat.status["engine_id"], beat.status["parsers"]) == ("n:run1", ["tool"])
        assert beat.status["max_num_seqs"] == 64, "runners see how many calls it computes at once"
        status, text = await at.ask("policy")
        assert status == 200 and text.startswith('data: {"weight_version":1,"engine_id":"n:run1","choices":[]}')
        await at.publish("policy", 2, is_whole=True)
        await at.beat(lambda beat: beat.state == "starting")
        engine.refused_versions = set()
        beat = await at.beat(lambda beat: beat.state == "ready" and beat.version == 2)
        assert beat.status["engine_id"] != "n:run1", "half a version is never served"
