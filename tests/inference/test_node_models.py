"""A node of several models, and a frozen one, with the stand-in for vLLM's server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save_file

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.engine.base import EngineError, OpenEngine
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.gateway.server import VERSION_HEADER
from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import WeightManifest
from tests.chaos.tokens import logprob
from tests.inference.test_node import STAND_IN
from tests.listening import child
from tests.polling import HANG_SECONDS

MODELS = ("writer", "checker")


@dataclass
class Running:
    """A node, and who sees it."""

    bus: Bus
    fleet: Fleet
    http: aiohttp.ClientSession
    directory: Path
    task: "asyncio.Task[None]"

    async def publish(self, model: str, version: int, base: int = 0, is_whole: bool = False) -> None:
        """A version of adapters on a base, or of whole weights."""
        names = {"base": {"x": np.full(4, base, np.float32)}}
        names |= {"added": {f"base_model.model.x.lora_{side}.weight": np.zeros((1, 1), np.float32) for side in "AB"}}
        blobs = []
        for name, arrays in names.items():
            path = self.directory / f"{model}-{name}"
            save_file(arrays, path, {"scale": "1"})
            key = f"{model}-{name}-{version}"
            blobs.append(await self.bus.object_store.put(subjects.WEIGHT_BUCKET, key, path))
        manifest = WeightManifest(
            run_id="r", model=model, version=version, kind="full" if is_whole else "lora",
            blobs=tuple(blobs[:1] if is_whole else blobs), epoch=1, step=0, created_at_ns=1,
        )  # fmt: skip
        await self.bus.publish(subjects.weights(model), manifest, msg_id=f"{model}-{version}")

    async def beat(self, fits: Callable[[Heartbeat], bool]) -> Heartbeat:
        """The first heartbeat that fits; raises what the node has raised."""
        async with asyncio.timeout(HANG_SECONDS):
            while not (members := [beat for beat in self.fleet.members() if fits(beat)]):
                if self.task.done():
                    await self.task
                await self.fleet.wait_for_change()
        return members[0]

    async def serves(self, model: str, *versions: int) -> Heartbeat:
        """Wait until a model is served in these versions."""
        return await self.beat(
            lambda beat: beat.model == model and beat.state == "ready" and beat.status["versions"] == [*versions]
        )

    async def ask(self, model: str | None, pinned: int | None = None) -> tuple[int, str]:
        """Status and text of an answer."""
        (address,) = {beat.address for beat in self.fleet.members()}
        body = {"prompt": [1], "max_tokens": 2, "stream": True} | ({"model": model} if model else {})
        headers = {} if pinned is None else {VERSION_HEADER: str(pinned)}
        async with self.http.post(f"{address}/v1/completions", json=body, headers=headers) as answer:
            return answer.status, await answer.text()

    async def check(self, model: str, version: int) -> None:
        """Whether a model is answered by a version of its own."""
        status, text = await self.ask(model)
        assert status == 200 and f'"token_logprobs": [{logprob(version)}]' in text, text
        assert f'"weight_version":{version},' in text


@asynccontextmanager
async def running(
    bus: Bus, directory: Path, open_engine: OpenEngine = VllmEngine, **settings: Any
) -> AsyncIterator[Running]:
    """A node that runs while the block does."""
    model = directory / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"vocab_size": 100}))
    fields = {"model_path": model, "id": "n", "vllm_command": [sys.executable, STAND_IN], "max_model_len": 64}
    checked = InferenceSettings.model_validate({"work_dir": directory / "work", **fields, **settings})
    stop = asyncio.Event()
    async with bus.fleet("inference") as fleet, aiohttp.ClientSession() as http:
        task = asyncio.create_task(node.run(bus, checked, stop, open_engine))
        try:
            yield Running(bus, fleet, http, directory, task)
        finally:
            stop.set()
            await asyncio.wait({task}, timeout=HANG_SECONDS)
            await cancel_and_wait(task)


TWO = {"lora": {"rank": 1, "max_loaded_versions": 2, "models": MODELS}}


async def test_each_model_has_its_own_versions_and_its_own_heartbeat(bus: Bus, tmp_path: Path) -> None:
    async with running(bus, tmp_path, **TWO) as at:
        await at.publish("writer", 1)
        writer = await at.serves("writer", 1)
        assert (await at.beat(lambda beat: beat.model == "checker")).state == "awaiting_weights"
        assert (await at.ask("checker"))[0] == 503 and (await at.ask("writer"))[0] == 200
        await at.publish("checker", 5)
        await at.publish("writer", 2)
        checker = await at.serves("checker", 5)
        await at.serves("writer", 1, 2)
        assert (writer.id, checker.id) == ("n:writer", "n:checker")
        assert (writer.address, writer.status["engine_id"]) == (checker.address, checker.status["engine_id"])
        await at.check("writer", 2)
        await at.check("checker", 5)
        status, text = await at.ask("checker", pinned=2)
        assert status == 409 and "serves version 5, not 2" in text
        for name, words in (("policy", "not policy"), (None, "not a request that names no model")):
            status, text = await at.ask(name)
            assert status == 404 and f"this node serves writer, checker, {words}" in text
        bases = [path.name for path in (tmp_path / "work" / "weights").glob("*.safetensors")]
        assert len(bases) == 1, "both start from one file"


async def test_what_is_decided_of_one_model_leaves_the_other_alone(bus: Bus, tmp_path: Path) -> None:
    async with running(bus, tmp_path, **TWO) as at:
        await at.publish("writer", 1)
        await at.publish("checker", 5)
        await at.serves("writer", 1)
        await at.serves("checker", 5)
        await WeightRegistry(bus, "checker").append_decision("revoked", 5, actor="me")
        await at.beat(lambda beat: beat.model == "checker" and beat.version is None)
        assert (await at.ask("checker"))[0] == 503
        await at.check("writer", 1)
        await WeightRegistry(bus, "writer").append_decision("pinned", 1, actor="me")
        await at.publish("writer", 2)
        await at.publish("checker", 6)
        await at.serves("checker", 6)
        await at.check("writer", 1)


async def test_adapters_of_another_base_and_whole_weights_are_refused_in_a_sentence(bus: Bus, tmp_path: Path) -> None:
    async with running(bus, tmp_path, **TWO) as at:
        await at.publish("writer", 1)
        await at.serves("writer", 1)
        await at.publish("checker", 5, base=9)
        sentence = "adapters of 'checker' and of 'writer' start from different bases: use a node for each"
        await at.beat(lambda beat: beat.model == "checker" and sentence in beat.status["problem"])
        await at.publish("checker", 6, is_whole=True)
        await at.beat(lambda beat: beat.model == "checker" and "whole weights" in beat.status["problem"])
        await at.check("writer", 1)
        await at.publish("checker", 7)
        await at.serves("checker", 7)


async def test_an_engine_that_ends_or_fails_an_audit_concerns_all_of_its_models(bus: Bus, tmp_path: Path) -> None:
    async with running(bus, tmp_path, **TWO) as at:
        for model, version in (("writer", 1), ("checker", 5)):
            await at.publish(model, version)
        for model, version in (("writer", 1), ("checker", 5)):
            engine_id = str((await at.serves(model, version)).status["engine_id"])
        child(STAND_IN).kill()
        for model in MODELS:
            await at.beat(lambda beat, model=model: beat.model == model and beat.state != "ready")
        for model, version in (("writer", 1), ("checker", 5)):
            beat = await at.serves(model, version)
            assert beat.status["engine_id"] != engine_id
            await at.check(model, version)
        verdict = AuditVerdict(
            engine_id=str(beat.status["engine_id"]), version=5, failed_version=5, reason="it differs", num_tokens=9,
            evidence=30.0, decided_at_ns=1,
        )  # fmt: skip
        await AuditLog(bus, "checker").append(verdict)
        for model in MODELS:
            await at.beat(lambda beat, model=model: beat.model == model and beat.state != "ready")
        for model, version in (("writer", 1), ("checker", 5)):
            assert (await at.serves(model, version)).status["engine_id"] != verdict.engine_id


async def test_a_frozen_node_serves_its_directory_as_version_0_and_says_what_it_ignores(
    bus: Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").mkdir()
    save_file({"x": np.zeros(4, np.float32)}, tmp_path / "model" / "model.safetensors")
    async with running(bus, tmp_path, model="judge", frozen=True) as at:
        ready = await at.beat(lambda beat: beat.state not in ("starting", "suspect"))
        assert ready.state == "ready", "it waits for no weights"
        assert (ready.id, ready.model, ready.version, ready.status["frozen"]) == ("n", "judge", 0, True)
        assert "broadcast" not in ready.status and ready.status["problem"] == ""
        for version in (3, 4):
            await at.publish("judge", version, is_whole=True)
            sentence = f"version {version} of 'judge' on the bus is ignored: this node is frozen"
            beat = await at.beat(lambda beat, sentence=sentence: beat.status["problem"] == sentence)
            assert beat.version == 0
        assert caplog.text.count("is ignored") == 1
        status, text = await at.ask("judge")
        assert status == 200 and '"weight_version":0,' in text
        status, text = await at.ask("judge", pinned=3)
        assert status == 409 and "serves version 0, not 3" in text
        child(STAND_IN).kill()
        await at.beat(lambda beat: beat.state == "starting")
        await at.beat(lambda beat: beat.state == "ready" and beat.version == 0)


async def test_a_frozen_node_without_weights_is_one_sentence(bus: Bus, tmp_path: Path) -> None:
    async with running(bus, tmp_path, frozen=True) as at:
        with pytest.raises(EngineError, match=r"model_path: .* holds no weights \(\*\.safetensors, \*\.bin, \*\.pt\)"):
            await at.task


async def test_two_nodes_do_not_share_a_work_dir(bus: Bus, tmp_path: Path) -> None:
    async with running(bus, tmp_path) as at:
        await at.beat(lambda beat: beat.state == "awaiting_weights")
        async with running(bus, tmp_path, id="other", model="checker") as other:
            with pytest.raises(EngineError, match=r"work_dir: .*work is in use by another process \(pid \d+\)"):
                await asyncio.wait_for(other.task, HANG_SECONDS)
        async with running(bus, tmp_path, id="other", model="checker", work_dir=tmp_path / "other"):
            await at.beat(lambda beat: beat.id == "other" and beat.state == "awaiting_weights")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"frozen": True, "lora": {"rank": 1}}, "frozen serves the weights of model_path as they are: leave out lora"),
        ({"model": "x", "lora": {"rank": 1, "models": ["a", "b"]}}, "model: 'x' is not one of lora.models"),
        ({"lora": {"rank": 1, "models": ["a", "a"]}}, "models names a model twice"),
    ],
)
def test_settings_that_do_not_go_together(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        InferenceSettings.model_validate({"model_path": "m", **fields})


def test_the_first_of_several_models_is_the_nodes() -> None:
    settings = InferenceSettings.model_validate({"model_path": "m", "lora": {"rank": 1, "models": ["a", "b"]}})
    assert (settings.model, settings.models) == ("a", ["a", "b"])
    assert InferenceSettings.model_validate_json(settings.model_dump_json()) == settings
