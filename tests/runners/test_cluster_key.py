"""A runner and a node's real gateway: the cluster key is between these two, and no agent learns it."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bus import Bus
from bus.doors import new_key
from inference.gateway import Gateway
from tests.runners.conftest import ScriptedEngine, ended, running, task

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
    monkeypatch.setenv("LIGHTNINGBUS_CLUSTER_KEY_FILE", str(tmp_path / "key"))
    given: dict[str, Any] = {"agent": "nosy:solve", "path": tmp_path, "cluster_key_file": tmp_path / "key"}
    async with (
        ScriptedEngine().serving(bus) as engine,
        aiohttp.ClientSession() as http,
        Gateway(engine.address, http, "127.0.0.1", 0, key) as node,
    ):
        node.state, node.version = "ready", engine.version
        said = {"state": "ready", "address": node.address, "model": "behind", "version": engine.version}
        async with bus.beat("inference", "behind", lambda: said), running(bus, **given):
            await bus.publish_task(task(model="behind", deadline=10.0 if same else 4.0, max_attempts=1))
            (batch,) = await ended(bus)
    assert batch.end is not None
    if not same:
        assert batch.end.outcome == "infra" and "asks for another cluster key" in batch.end.error
        return
    assert (batch.end.outcome, batch.end.reward) == ("ok", 1.0)
    assert len(engine.requests) == 1
    assert "OPENAI_API_KEY" in batch.end.result and "LIGHTNINGBUS" not in batch.end.result
    assert key not in f"{batch}{caplog.text}"
