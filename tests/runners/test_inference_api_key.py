"""A runner and a node's real gateway: the inference API key is between these two, and no agent learns it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.readiness import not_ready_reason
from lightningbus.bus.security.secrets import new_key
from lightningbus.inference.engine.vllm_client import VllmClient
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.server import Gateway
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ScriptedEngine, calls_of, ended, running, task

NOSY = """
import os
from openai import OpenAI

def solve(task):
    OpenAI(max_retries=0).chat.completions.create(model="behind", messages=[{"role": "user", "content": "x"}])
    return {"reward": 1.0, "seen": dict(os.environ)}
"""


@pytest.mark.parametrize("same", [True, False], ids=["the same key", "another key"])
async def test_a_rollout_goes_through_with_the_nodes_key_only(
    bus: Bus, tmp_path: Path, same: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another the call is held until the deadline, and that is nobody's fault but the installation's."""
    caplog.set_level("DEBUG")
    (tmp_path / "nosy.py").write_text(NOSY)
    key = new_key()
    (tmp_path / "key").write_text(key if same else new_key())
    monkeypatch.setenv("LIGHTNINGBUS_INFERENCE_API_KEY_FILE", str(tmp_path / "key"))
    fields: dict[str, Any] = {
        "entrypoint": "nosy:solve",
        "working_dir": tmp_path,
        "inference_api_key_file": tmp_path / "key",
    }
    model = ServedModel("behind")
    async with (
        ScriptedEngine().serving(bus) as engine,
        aiohttp.ClientSession() as http,
        Gateway(VllmClient(http, engine.address).forward, "127.0.0.1", 0, [model], key) as node,
    ):
        model.state, model.version = "ready", engine.version
        attributes = {"state": "ready", "address": node.address, "model": "behind", "version": engine.version}
        async with bus.heartbeat("inference", "behind", lambda: attributes), running(bus, **fields):
            await TaskPublisher(bus).publish_task(
                task(model="behind", deadline=HANG_SECONDS / 2 if same else 8.0, max_attempts=1)
            )
            (batch,) = await ended(bus)
    assert batch.end is not None
    if not same:
        assert batch.end.outcome == "infra_error" and "refuses the inference API key of this runner" in batch.end.error
        return
    assert (batch.end.outcome, batch.end.reward) == ("ok", 1.0)
    assert len(engine.requests) == 1
    assert "OPENAI_API_KEY" in batch.end.result and "LIGHTNINGBUS" not in batch.end.result
    assert key not in f"{batch}{caplog.text}"


@pytest.mark.parametrize("has_key", [True, False], ids=["another key", "no key"])
async def test_a_runner_whose_inference_api_key_is_refused_reports_it_at_once_in_its_log_and_its_heartbeat(
    bus: Bus, tmp_path: Path, has_key: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """While the rollout still waits, and once however often it asks."""
    (tmp_path / "nosy.py").write_text(NOSY)
    (tmp_path / "key").write_text(new_key())
    fields: dict[str, Any] = {"entrypoint": "nosy:solve", "working_dir": tmp_path, "drain_timeout_seconds": 0}
    if has_key:
        fields["inference_api_key_file"] = tmp_path / "key"
    sentence = (
        "behind refuses the inference API key of this runner" if has_key else "behind asks for an inference API key"
    )
    async with (
        ScriptedEngine().serving(bus) as engine,
        serving_behind(bus, engine, "behind"),
        bus.fleet("runner") as fleet,
        running(bus, **fields),
    ):
        await TaskPublisher(bus).publish_task(task(model="behind"))
        async with asyncio.timeout(HANG_SECONDS):
            while not [beat for beat in fleet.members() if sentence in str(beat.status.get("last_problem"))]:
                await fleet.wait_for_change()
        for _ in range(4):  # it asks again meanwhile
            await fleet.wait_for_change()
    (record,) = [record for record in caplog.records if sentence in record.getMessage()]
    assert record.levelname == "ERROR" and "inference_api_key_file" in record.getMessage()


def write_agent(directory: Path) -> tuple[str, dict[str, Any]]:
    """Write an agent and a key; return the key, and the runner's settings of both."""
    (directory / "nosy.py").write_text(NOSY)
    (directory / "key").write_text(key := new_key())
    return key, {"entrypoint": "nosy:solve", "working_dir": directory, "inference_api_key_file": directory / "key"}


async def test_a_node_that_refuses_the_key_does_not_keep_calls_from_one_that_takes_it(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them the runner would choose."""
    key, fields = write_agent(tmp_path)
    async with (
        ScriptedEngine().serving(bus) as engine,
        serving_behind(bus, engine, "refuses"),
        serving_behind(bus, engine, "takes", key),
        running(bus, **fields),
    ):
        for number in range(8):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", model="behind", max_attempts=1))
        batches = await ended(bus, 8)
    assert {batch.end.outcome for batch in batches if batch.end} == {"ok"}
    assert {call.node for batch in batches for call in calls_of(batch)} == {"takes"}


async def test_a_runner_that_every_node_refuses_takes_no_more_tasks_until_one_takes_its_key(
    bus: Bus, tmp_path: Path
) -> None:
    """Its neighbours take them, and its probe tells why it is not ready."""
    key, fields = write_agent(tmp_path)
    async with (
        ScriptedEngine().serving(bus) as engine,
        serving_behind(bus, engine, "refuses"),
        bus.fleet("runner") as fleet,
        running(bus, **fields),
    ):
        publisher = TaskPublisher(bus)
        await publisher.publish_task(task(id="held", model="behind", deadline=6.0, max_attempts=1))
        (batch,) = await ended(bus)
        assert batch.end is not None and batch.end.outcome == "infra_error"
        await publisher.publish_task(task(id="next", model="behind", max_attempts=1))
        for _ in range(3):
            await fleet.wait_for_change()
            (beat,) = fleet.members()
            assert (beat.state, beat.status["busy"]) == ("refused", "0/1")
        assert "the nodes reject its inference API key, and it takes no tasks" in not_ready_reason(beat)
        async with serving_behind(bus, engine, "takes", key):
            (batch,) = await ended(bus)
        assert batch.end is not None and batch.end.outcome == "ok"


@asynccontextmanager
async def serving_behind(bus: Bus, engine: ScriptedEngine, id: str, key: str = "") -> AsyncIterator[None]:
    """A node that serves the model ``behind`` and asks for a key; by default for one that nobody has."""
    model = ServedModel("behind")
    async with (
        aiohttp.ClientSession() as http,
        Gateway(VllmClient(http, engine.address).forward, "127.0.0.1", 0, [model], key or new_key()) as node,
    ):
        model.state, model.version = "ready", engine.version
        alive = {"state": "ready", "address": node.address, "model": "behind", "version": engine.version}
        async with bus.heartbeat("inference", id, lambda: alive):
            yield
