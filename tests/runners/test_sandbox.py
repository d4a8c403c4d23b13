"""What an agent's processes may take, see and leave behind: limits, private files, a sandbox, and a clean end."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bus import Bus
from bus.processes import is_alive
from schemas.events import SpanBatch
from tests.runners.conftest import AGENTS, ScriptedEngine, ended, running, task
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BRING = ROOT / "docs" / "bring-your-agent.md"


def said(batch: SpanBatch) -> Any:
    """What the agent returned."""
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    return json.loads(batch.end.result)


@pytest.mark.parametrize(
    ("agent", "settings", "sentence"),
    [
        ("leaks_in_children", {"memory_gb": 0.4}, "processes; the limit is memory_gb: 0.4"),
        ("forks_without_end", {"processes": 8}, "processes; the limit is processes: 8"),
        ("writes_without_end", {"file_gb": 0.01}, "File too large; the limit is file_gb: 0.01"),
        ("opens_without_end", {"open_files": 64}, "the limit is open_files: 64"),
    ],
)
async def test_who_takes_more_than_it_may_is_an_agent_error_that_names_the_limit(
    bus: Bus, engine: ScriptedEngine, agent: str, settings: dict[str, Any], sentence: str
) -> None:
    async with running(bus, agent=f"nasty:{agent}", **settings):
        await bus.publish_task(task(id="a"))
        await bus.publish_task(task(id="b", input={"calm": True}))
        greedy, after = await ended(bus, 2)
    assert greedy.end is not None and greedy.end.outcome == "agent_error", greedy.end
    assert sentence in greedy.end.error
    assert after.end is not None and after.end.outcome == "ok", "the next rollout has a fresh process"


async def test_each_process_has_a_directory_of_its_own_and_nothing_of_it_is_left(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(bus, agent="nasty:tells", rollouts_per_process=1):
        await bus.publish_task(task(id="a"))
        await bus.publish_task(task(id="b"))
        one, other = map(said, await ended(bus, 2))
    assert one["tmp"] != other["tmp"] and one["key"] != other["key"], "a fresh process for each rollout"
    assert not Path(one["tmp"]).exists() and not Path(other["tmp"]).exists()
    assert one["umask"] == 0o077


async def test_a_daemon_ends_with_its_agent(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, agent="nasty:leaves_a_daemon"):
        await bus.publish_task(task())
        (batch,) = await ended(bus)
        daemon = said(batch)["daemon"]
        assert is_alive(daemon), "the agent lives, and so may what it started"
    assert not is_alive(daemon)


def usable(*command: str) -> str:
    """Why a command cannot be used here; empty if it can."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    return f"{command[0]} does not work here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.parametrize("prefix", [["env", "MARK={tmp}"], ["setpriv", "--no-new-privs"]])
async def test_whatever_hands_on_input_output_and_environment_may_stand_in_front(
    bus: Bus, engine: ScriptedEngine, prefix: list[str]
) -> None:
    if why := usable(*prefix):
        pytest.skip(why)
    async with running(bus, agent="nasty:tells", sandbox=prefix):
        await bus.publish_task(task())
        (batch,) = await ended(bus)
    told = said(batch)
    assert told["marked"] == (told["tmp"] if prefix[0] == "env" else None)
    assert ("NoNewPrivs:\t1" in told["status"]) == (prefix[0] == "setpriv")
    command = [sys.executable, "-c", "import json, os, sys; print(json.dumps({'reward': 1.0, **os.environ}))"]
    async with running(bus, command=command, name="two", sandbox=["env", "MARK=x"]):
        await bus.publish_task(task(id="u", agent="two"))
        (batch,) = await ended(bus)
    assert said(batch)["MARK"] == "x"


async def test_the_documented_bubblewrap_hides_secrets_other_rollouts_and_other_processes(
    bus: Bus, engine: ScriptedEngine, tmp_path: Path
) -> None:
    if why := usable("bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc"):
        pytest.skip(why)
    (block,) = [part.split("```")[0] for part in BRING.read_text().split("```yaml\n") if "bwrap" in part]
    (key := tmp_path / "cluster.key").write_text("secret" * 8)
    paths = [str(key), f"/proc/{os.getpid()}", str(ROOT / "runners" / "host.py"), "/usr/bin/env"]
    async with running(bus, agent="nasty:tells", concurrency=2, **yaml.safe_load(block)):
        await bus.publish_task(task(id="a", input={"paths": paths}))
        (first,) = await ended(bus)
        other = said(first)["tmp"]
        await bus.publish_task(task(id="b", input={"paths": [other]}))
        await bus.publish_task(task(id="c", input={"paths": [other]}))
        others = [said(batch) for batch in await ended(bus, 2)]
    assert said(first)["readable"] == ["/usr/bin/env"]
    assert all(told["readable"] == ([other] if told["tmp"] == other else []) for told in others)


@pytest.mark.parametrize(
    "agent", [["--command", f"{sys.executable} nasty.py"], ["--agent", "nasty:spies"]], ids=["program", "function"]
)
async def test_an_agent_can_neither_look_into_its_runner_nor_outlive_it(
    bus: Bus, nats_url: str, engine: ScriptedEngine, agent: list[str]
) -> None:
    """Root without its capabilities is a user like any other."""
    user = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    if user and (why := usable(*user)):
        pytest.skip(why)
    runner = [sys.executable, "-m", "lightningbus", "runner", "--bus", nats_url, "--path", str(AGENTS), "-n", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(*user, *runner, *agent, env=environment, start_new_session=True)
    try:
        await bus.publish_task(task())
        (batch,) = await ended(bus)
        told = said(batch)
        assert told["opened"] == [] and told["parent"] == process.pid
        if agent[0] == "--command":  # its process is gone, and so is all that it left
            await asyncio.to_thread(until, lambda: is_alive(told["daemon"]), False)
        assert process.returncode is None
    finally:
        process.terminate()
        await process.wait()
    assert not is_alive(told["daemon"])
