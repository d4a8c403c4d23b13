"""Runners with workspaces that are killed: every rollout ends once; no files, processes and containers are left."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVAL
from lightningbus.common.processes.procfs import PROC, is_alive
from lightningbus.runners.workspaces.containers.engine import LABEL
from lightningbus.schemas.spans import SpanBatch
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS, until
from tests.runners.conftest import task
from tests.runners.fake_kubernetes import NAMESPACE, TOKEN
from tests.runners.test_workspaces import BUBBLEWRAP

ROOT = Path(__file__).resolve().parents[2]
NUM_ROLLOUTS = int(os.environ.get("WORKSPACE_ROLLOUTS", "200"))
NUM_KILLS = int(os.environ.get("WORKSPACE_KILLS", "10"))
CONTAINER_SHARE = 4
"""Fewer rollouts by this number run in containers, which take longer to start."""
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


@dataclass(frozen=True)
class Place:
    """Return settings and environment variables of a runner that say where its workspaces are."""

    settings: dict[str, Any]
    variables: dict[str, str]
    list_containers: Callable[[], list[str]] = list


def list_of_docker(socket: Path) -> list[str]:
    """Containers that run; one that was created and not started is removed by a runner that starts later."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket))) as client:
        response = client.get("http://docker/containers/json", params={"filters": json.dumps({"label": [LABEL]})})
    return [each["Id"] for each in response.json() if each["State"] == "running"]


def list_of_kubernetes(server: str) -> list[str]:
    url = f"{server}/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    response = httpx.get(url, params={"labelSelector": LABEL}, headers={"Authorization": f"Bearer {TOKEN}"})
    return [each["metadata"]["name"] for each in response.json()["items"]]


@asynccontextmanager
async def opened(provider: str, folder: Path) -> AsyncIterator[Place]:
    """A place, whose engine of containers runs as a process of its own."""
    if provider not in ("docker", "kubernetes"):
        yield Place({"provider": provider}, {})
        return
    is_docker = provider == "docker"
    ready = folder / ("docker.sock" if is_docker else "kubeconfig")
    words = [f"tests.runners.fake_{provider}", *([str(ready)] if is_docker else [str(folder), "v5.channel.k8s.io"])]
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", *words, cwd=ROOT)
    try:
        await asyncio.to_thread(until, ready.exists, True)
        settings = {"provider": provider, "image": "here:1"}
        if is_docker:
            yield Place({**settings, "docker_socket": str(ready)}, {}, partial(list_of_docker, ready))
        else:
            address = yaml.safe_load(ready.read_text())["clusters"][0]["cluster"]["server"]
            yield Place(settings, {"KUBECONFIG": str(ready)}, partial(list_of_kubernetes, address))
    finally:
        server.kill()
        await server.wait()


def write_settings(folder: Path, place: Place) -> Path:
    """Settings of a runner, and the repository that its rollouts work in."""
    (folder / "sources" / "calc").mkdir(parents=True)
    (folder / "sources" / "calc" / "calc.py").write_text("answer = 0\n")
    (folder / "agent").mkdir()
    settings = {
        "command": ["/usr/bin/python3", "-c", AGENT],
        "working_dir": str(folder / "agent"),
        "concurrency": 4,
        "ack_wait": 3,
        "workspace": {
            "sources": [str(folder / "sources")],
            "directory": str(folder / "workspaces"),
            **place.settings,
        },
    }
    (folder / "runner.json").write_text(json.dumps(settings))
    return folder / "runner.json"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "provider",
    [
        "process",
        *(
            pytest.param(name, marks=pytest.mark.skipif(bool(BUBBLEWRAP), reason=BUBBLEWRAP))
            for name in ("bubblewrap", "docker", "kubernetes")
        ),
    ],
)
async def test_a_runner_that_is_killed_loses_no_rollout_and_leaves_nothing(
    bus: Bus, nats_url: str, tmp_path: Path, provider: str
) -> None:
    share = CONTAINER_SHARE if provider in ("docker", "kubernetes") else 1
    async with opened(provider, tmp_path) as place:
        await kill_runners(bus, nats_url, tmp_path, place, NUM_ROLLOUTS // share, NUM_KILLS // share)


async def kill_runners(bus: Bus, nats_url: str, folder: Path, place: Place, num_rollouts: int, num_kills: int) -> None:
    """Run rollouts, and kill the runner at even intervals; all of them end, and nothing of them is left."""
    settings = write_settings(folder, place)
    grade = {"command": ["python3", "-c", CHECK], "needs_result": True}
    spec: dict[str, Any] = {"directory": "calc", "grade": grade}

    async def start() -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "lightningbus", "runner", "--bus", nats_url, "--settings", str(settings)]
        environment = {**os.environ, **place.variables, "PYTHONPATH": str(ROOT)}
        return await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, start_new_session=True)

    runner = await start()
    results: dict[str, SpanBatch] = {}
    try:
        tasks = [task(id=f"t{number}", input={"workspace": spec}, max_attempts=99) for number in range(num_rollouts)]
        await TaskPublisher(bus).publish_tasks(tasks)
        num_killed, at_next = 0, num_rollouts // (num_kills + 1)
        async with asyncio.timeout(HANG_SECONDS) as limit, bus.pull(STORE_EVAL, slots=8) as puller:
            async for message in puller:
                limit.reschedule(asyncio.get_running_loop().time() + HANG_SECONDS)
                event = message.event()
                await message.ack()
                if isinstance(event, SpanBatch) and event.end is not None and event.end.is_final:
                    results.setdefault(event.task_id, event)
                if num_killed < num_kills and len(results) >= at_next * (num_killed + 1):
                    runner.send_signal(signal.SIGKILL)
                    await runner.wait()
                    num_killed += 1
                    runner = await start()
                if len(results) == num_rollouts:
                    break
    finally:
        runner.terminate()
        await runner.wait()
    assert num_killed == num_kills
    ends = {(batch.end.outcome, batch.end.reward) for batch in results.values() if batch.end is not None}
    assert ends == {("ok", 1.0)}
    assert (folder / "sources" / "calc" / "calc.py").read_text() == "answer = 0\n"
    assert list((folder / "workspaces").iterdir()) == []
    await asyncio.to_thread(until, place.list_containers, [])
    await asyncio.to_thread(until, daemons, set())
