"""A node whose engine dies: as it starts, as it serves; with the stand-in for vLLM's server, which starts quickly."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.engine.base import EngineError
from lightningbus.inference.gateway.server import VERSION_HEADER
from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.schemas.codec import decode
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import WeightManifest
from tests.chaos.tokens import logprob
from tests.listening import child, ports_and_sockets
from tests.polling import HANG_SECONDS

STAND_IN = str(Path(__file__).resolve().parents[1] / "chaos" / "vllm.py")
DIES_FIRST = """
import os, pathlib, sys
mark = pathlib.Path(sys.argv[1])
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), 9)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@asynccontextmanager
async def serving(
    bus: Bus, directory: Path, command: list[str], **settings: object
) -> AsyncIterator["asyncio.Task[None]"]:
    """A node with a version to serve."""
    (directory / "model").mkdir()
    (directory / "model" / "config.json").write_text(json.dumps({"vocab_size": 100}))
    save_file({"x": np.zeros(4, np.float32)}, directory / "w.safetensors")
    blob = await bus.object_store.put(subjects.WEIGHT_BUCKET, "policy-0", directory / "w.safetensors")
    manifest = WeightManifest(run_id="r", model="policy", version=0, blobs=(blob,), epoch=1, step=0, created_at_ns=1)
    await bus.publish(subjects.weights("policy"), manifest, msg_id="w0")
    stop = asyncio.Event()
    fields = {"model_path": directory / "model", "id": "n", "vllm_command": command, "work_dir": directory / "work"}
    checked = InferenceSettings.model_validate({**fields, "max_model_len": 64, **settings})
    running = asyncio.create_task(node.run(bus, checked, stop))
    try:
        yield running
    finally:
        stop.set()
        await asyncio.wait({running}, timeout=HANG_SECONDS)
        await cancel_and_wait(running)


async def states_until(bus: Bus, last: str, after: "psutil.Process | None" = None) -> list[str]:
    """The states a node says it is in, one after the other, until it is in a certain one again.

    Of each heartbeat: a fleet holds the last one alone, and two may come at once.
    """
    seen: list[str] = []
    heartbeats = await bus.nc.subscribe(subjects.heartbeats("inference"))
    async with asyncio.timeout(HANG_SECONDS):
        async for message in heartbeats.messages:
            state = decode(Heartbeat, message.data).state
            seen += [state] if not seen or state != seen[-1] else []
            if state == last and (after is None or len(seen) > 1):
                break
    await heartbeats.unsubscribe()
    return seen


async def test_an_engine_that_dies_is_started_again_and_serves_only_verified_weights(bus: Bus, tmp_path: Path) -> None:
    async with serving(bus, tmp_path, [sys.executable, STAND_IN]):
        await states_until(bus, "ready")
        engine = child(STAND_IN)
        engine.kill()
        seen = await states_until(bus, "ready", after=engine)
    assert [state for state in seen if state != "ready"] == ["starting", "awaiting_weights"]


async def test_an_engine_that_fails_the_audit_is_replaced_by_another(bus: Bus, tmp_path: Path) -> None:
    """The node is suspect meanwhile, and the new engine has another name."""
    async with serving(bus, tmp_path, [sys.executable, STAND_IN]), bus.fleet("inference") as fleet:

        async def ready_engine(other: str = "") -> str:
            async with asyncio.timeout(HANG_SECONDS):
                while True:
                    await fleet.wait_for_change()
                    for beat in fleet.members():
                        if beat.state == "ready" and (engine_id := str(beat.status["engine_id"])) != other:
                            return engine_id

        engine_id = await ready_engine()
        verdict = AuditVerdict(
            engine_id=engine_id, version=0, failed_version=0, reason="it differs", num_tokens=9, evidence=30.0,
            decided_at_ns=1,
        )  # fmt: skip
        states = asyncio.create_task(states_until(bus, "ready", after=child(STAND_IN)))
        await asyncio.sleep(0)
        await AuditLog(bus, "policy").append(verdict)
        assert await ready_engine(engine_id) != engine_id
        assert "suspect" in await states


async def test_an_engine_listens_on_a_socket_that_no_other_user_reaches_and_on_no_port(
    bus: Bus, tmp_path: Path
) -> None:
    """Its control routes ask nobody who they are."""
    async with serving(bus, tmp_path, [sys.executable, STAND_IN]):
        await states_until(bus, "ready")
        ports, (path,) = ports_and_sockets(child(STAND_IN))
        directory = path.parent
        assert not ports
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700 and directory.stat().st_uid == os.getuid()
        engine = child(STAND_IN)
        engine.kill()
        await states_until(bus, "ready", after=engine)
        assert ports_and_sockets(child(STAND_IN)) == (set(), {path}), "the next one takes its place"
    assert not directory.exists()


async def publish_adapters(bus: Bus, directory: Path, version: int) -> None:
    """A version of adapters, the same base to all."""
    arrays = {f"base_model.model.x.lora_{side}.weight": np.zeros((1, 1), np.float32) for side in "AB"}
    save_file(arrays, directory / "adapters", {"scale": "1"})
    names = {"policy-base": directory / "w.safetensors", f"policy-{version}": directory / "adapters"}
    blobs = tuple([await bus.object_store.put(subjects.WEIGHT_BUCKET, name, path) for name, path in names.items()])
    fields = {"run_id": "r", "model": "policy", "epoch": 1, "step": 0, "created_at_ns": 1}
    manifest = WeightManifest(version=version, kind="lora", blobs=blobs, **fields)
    await bus.publish(subjects.weights("policy"), manifest, msg_id=f"w{version}")


async def test_an_engine_that_dies_is_given_again_the_adapters_it_held(bus: Bus, tmp_path: Path) -> None:
    async with (
        serving(bus, tmp_path, [sys.executable, STAND_IN], lora={"rank": 1, "max_loaded_versions": 2}),
        bus.fleet("inference") as fleet,
        aiohttp.ClientSession() as http,
    ):

        async def holds(*versions: int) -> str:
            async with asyncio.timeout(HANG_SECONDS):
                while True:
                    for beat in fleet.members():
                        if beat.state == "ready" and beat.status["versions"] == list(versions):
                            return beat.address
                    await fleet.wait_for_change()

        await holds(0)  # whole weights, which are then taken the place of
        for version in (1, 2, 3):
            await publish_adapters(bus, tmp_path, version)
            address = await holds(*range(max(1, version - 1), version + 1))
        engine = child(STAND_IN)
        engine.kill()
        await states_until(bus, "ready", after=engine)
        assert await holds(2, 3) == address
        for version, status in ((1, 409), (2, 200), (3, 200)):
            body = {"model": "policy", "prompt": [1], "max_tokens": 2, "stream": True}
            headers = {VERSION_HEADER: str(version)}
            async with http.post(f"{address}/v1/completions", json=body, headers=headers) as answer:
                text = await answer.text()
                assert answer.status == status
                if status == 200:
                    assert f'"token_logprobs": [{logprob(version)}]' in text and f'"weight_version":{version}' in text


async def test_an_engine_killed_as_it_first_starts_is_started_again(bus: Bus, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIES_FIRST, str(tmp_path / "died"), STAND_IN]
    async with serving(bus, tmp_path, command):
        await states_until(bus, "ready")
    assert (tmp_path / "died").exists()


async def test_an_engine_that_refuses_to_start_is_one_sentence(bus: Bus, tmp_path: Path) -> None:
    async with serving(bus, tmp_path, [sys.executable, "-c", "raise SystemExit('ValueError: no such thing')"]) as node:
        with pytest.raises(EngineError, match="vLLM ended with 1: ValueError: no such thing"):
            await asyncio.wait_for(node, HANG_SECONDS)
