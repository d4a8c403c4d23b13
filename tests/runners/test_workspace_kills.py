"""Runners with workspaces that are killed: every rollout ends once, and neither files nor processes are left."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVAL
from lightningbus.common.processes.procfs import PROC, is_alive
from lightningbus.schemas.spans import SpanBatch
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS, until
from tests.runners.conftest import task
from tests.runners.test_workspaces import BUBBLEWRAP

ROOT = Path(__file__).resolve().parents[2]
NUM_ROLLOUTS = int(os.environ.get("WORKSPACE_ROLLOUTS", "200"))
NUM_KILLS = int(os.environ.get("WORKSPACE_KILLS", "10"))
LEFT = "86399.25"
"""Seconds of the daemon that each rollout leaves, by which it is found."""
AGENT = f"""
import json, subprocess
subprocess.Popen(["sleep", "{LEFT}"], start_new_session=True)
with open("calc.py", "a") as file: file.write("answer = 42\\n")
print(json.dumps(dict()))
"""
CHECK = "import calc, json, os; json.dump(calc.answer == 42, open(os.environ['RESULT_FILE'], 'w'))"


def daemons() -> set[int]:
    """Processes that agents left."""
    pids = set()
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and is_alive(int(entry.name)):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if LEFT.encode() in words and b"sleep" in words[0]:
                pids.add(int(entry.name))
    return pids


def write_settings(folder: Path, provider: str) -> Path:
    """Settings of a runner, and the repository that its rollouts work in."""
    (folder / "sources" / "calc").mkdir(parents=True)
    (folder / "sources" / "calc" / "calc.py").write_text("answer = 0\n")
    settings = {
        "command": ["/usr/bin/python3", "-c", AGENT],
        "concurrency": 4,
        "ack_wait": 3,
        "workspace": {
            "provider": provider,
            "sources": [str(folder / "sources")],
            "directory": str(folder / "workspaces"),
        },
    }
    (folder / "runner.json").write_text(json.dumps(settings))
    return folder / "runner.json"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "provider", ["process", pytest.param("bubblewrap", marks=pytest.mark.skipif(bool(BUBBLEWRAP), reason=BUBBLEWRAP))]
)
async def test_a_runner_that_is_killed_loses_no_rollout_and_leaves_nothing(
    bus: Bus, nats_url: str, tmp_path: Path, provider: str
) -> None:
    settings = write_settings(tmp_path, provider)
    grade = {"command": ["python3", "-c", CHECK], "needs_result": True}
    spec: dict[str, Any] = {"directory": "calc", "grade": grade}

    async def start() -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "lightningbus", "runner", "--bus", nats_url, "--settings", str(settings)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, start_new_session=True)

    runner = await start()
    results: dict[str, SpanBatch] = {}
    try:
        tasks = [task(id=f"t{number}", input={"workspace": spec}, max_attempts=99) for number in range(NUM_ROLLOUTS)]
        await TaskPublisher(bus).publish_tasks(tasks)
        num_kills, at_next = 0, NUM_ROLLOUTS // (NUM_KILLS + 1)
        async with asyncio.timeout(HANG_SECONDS) as limit, bus.pull(STORE_EVAL, slots=8) as puller:
            async for message in puller:
                limit.reschedule(asyncio.get_running_loop().time() + HANG_SECONDS)
                event = message.event()
                await message.ack()
                if isinstance(event, SpanBatch) and event.end is not None and event.end.is_final:
                    results.setdefault(event.task_id, event)
                if num_kills < NUM_KILLS and len(results) >= at_next * (num_kills + 1):
                    runner.send_signal(signal.SIGKILL)
                    await runner.wait()
                    num_kills += 1
                    runner = await start()
                if len(results) == NUM_ROLLOUTS:
                    break
    finally:
        runner.terminate()
        await runner.wait()
    assert num_kills == NUM_KILLS
    ends = {(batch.end.outcome, batch.end.reward) for batch in results.values() if batch.end is not None}
    assert ends == {("ok", 1.0)}
    assert (tmp_path / "sources" / "calc" / "calc.py").read_text() == "answer = 0\n"
    assert list((tmp_path / "workspaces").iterdir()) == []
    await asyncio.to_thread(until, daemons, set())
