"""A run of a small system with the faults of its plan, from the first command to its history."""

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgpack

from tests.history.history import History
from tests.history.plan import Plan
from tests.history.processes import ENGINE, HERE, ROOT, Processes
from tests.history.recorder import DROPPED, Recorder, recording
from tests.history.views import Views
from tests.history.wire import TASKS as RECORDS
from tests.history.wire import read_wire

RUN = "history"
MODEL = ROOT / "examples" / "calculator" / "model.py"
LEASE_SECONDS = 3.0
MOST_SECONDS = 1800.0
MOST_ATTEMPTS, MOST_REPEATED = 30, 12
TASK = "lb.task.{mode}.default"
HEADERS = {"Lightningbus-Schema": "Task/2"}


def make_model(directory: Path) -> Path:
    """Make a small model, which learns; the answers come from a stand-in for vLLM."""
    command = [sys.executable, str(MODEL), "--steps", "1", "--out", str(directory / "model")]
    subprocess.run(command, check=True, capture_output=True)
    return directory / "model"


async def play(plan: Plan, model: Path, directory: Path) -> History:
    """Run a plan to its end, and return its history."""
    directory.mkdir(parents=True)
    async with asyncio.timeout(MOST_SECONDS), Processes(directory).running() as processes:
        port = free_port()
        await processes.start("bus", "bus", "--port", str(port), "--dir", str(directory / "bus"))
        url = await processes.wait_for_line("bus", r"bus: (nats://\S+)")
        async with recording(url) as recorder:
            views = await _start(plan, model, directory, processes, url)
            acknowledged: list[str] = []
            async with asyncio.TaskGroup() as group:
                group.create_task(_publish(plan, recorder, acknowledged))
                group.create_task(_break(plan, processes, recorder))
                group.create_task(processes.ended("learner"))
            await recorder.drained()
            return History(
                acknowledged=acknowledged,
                max_staleness=plan.max_staleness,
                wire=read_wire(recorder.messages()),
                sql=await asyncio.to_thread(views.read),
                rollouts=await asyncio.to_thread(views.read_rollouts),
                dead_letters=await asyncio.to_thread(views.read_dead_letters),
            )


def free_port() -> int:
    """Return a port that a server may keep over its restarts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def _start(plan: Plan, model: Path, directory: Path, processes: Processes, url: str) -> Views:
    """Start all roles but the bus."""
    port = free_port()
    tasks = directory / "tasks.jsonl"
    lines = [{"id": f"q{number}", "input": {"question": f"what follows {number}?"}} for number in range(plan.num_tasks)]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shared = {"model_path": str(model)}
    await processes.start_role(
        "store", "store", {"data_dir": str(directory / "store"), "http_port": port, "flush_interval_seconds": 0.2}, url
    )
    node = {"vllm_command": ENGINE, "max_model_len": 256, "work_dir": str(directory / "node"), "id": "inference-0"}
    await processes.start_role("inference-0", "inference", {**shared, **node}, url)
    for name in ("runner-0", "runner-1"):
        runner = {
            "entrypoint": "agent:solve", "working_dir": str(HERE), "concurrency": 3, "ack_wait": LEASE_SECONDS,
            "id": name,
        }  # fmt: skip
        await processes.start_role(name, "runner", runner, url)
    learner = {
        "run": RUN, "tasks": str(tasks), "group_size": plan.group_size, "groups_per_step": plan.groups_per_step,
        "max_steps": plan.num_steps, "max_staleness": plan.max_staleness, "seq_len": 128, "cpu_threads": 1,
        "checkpoint_interval": plan.checkpoint_interval, "checkpoint_dir": str(directory / "checkpoints"),
        "rollout_timeout_seconds": 120.0, "max_attempts": MOST_ATTEMPTS, "group_timeout_seconds": 240.0,
        "engine": {"check_model": False},
    }  # fmt: skip
    await processes.start_role("learner", "learner", {**shared, **learner}, url)
    return Views(f"http://127.0.0.1:{port}")


async def _publish(plan: Plan, recorder: Recorder, acknowledged: list[str]) -> None:
    """Publish tasks of evaluations while rollouts end, and note what the server acknowledges."""
    for number in range(plan.num_evaluations):
        await recorder.count(int(plan.late * number / plan.num_evaluations))
        task = {
            "id": f"own{number}", "run_id": RUN, "agent": "default", "mode": "eval", "evaluation": "own",
            "input": {"question": f"what comes before {number}?"}, "max_attempts": MOST_ATTEMPTS, "deadline": 120.0,
        }  # fmt: skip
        await _put(
            recorder, TASK.format(mode="eval"), msgpack.packb(task), {**HEADERS, "Nats-Msg-Id": f"task:own{number}.0"}
        )
        acknowledged.append(f"own{number}.0")


async def _put(recorder: Recorder, subject: str, payload: bytes, headers: dict[str, str]) -> None:
    """Publish until the server acknowledges."""
    while True:
        try:
            await recorder.jetstream.publish(subject, payload, headers=headers)
        except DROPPED:
            await asyncio.sleep(0.1)
        else:
            return


async def _break(plan: Plan, processes: Processes, recorder: Recorder) -> None:
    """Do what the plan says to the system."""
    rng = random.Random(plan.seed)
    for fault in plan.faults:
        await recorder.count(fault.after)
        if fault.action == "repeat":
            await _repeat(recorder, rng)
        elif fault.action == "kill":
            processes.signal(fault.target, signal.SIGKILL)
        elif processes.signal(fault.target, signal.SIGSTOP) is not None:
            await asyncio.sleep(fault.seconds)  # the fault itself
            processes.signal(fault.target, signal.SIGCONT)


async def _repeat(recorder: Recorder, rng: random.Random) -> None:
    """Publish events again, and tasks of records, each under its old message id and under another."""
    stored = sorted((key, message) for key, message in recorder.stored.items() if key[0] != "WEIGHTS")
    for (stream, sequence), message in rng.sample(stored, min(MOST_REPEATED, len(stored))):
        again = {**message.headers, "Nats-Msg-Id": f"again:{stream}:{sequence}"}
        for headers in (message.headers, again):
            await _put(recorder, message.subject, message.payload, headers)
        if message.subject == RECORDS:
            task = rng.choice(msgpack.unpackb(message.payload, strict_map_key=False)["tasks"])["task"]
            headers = {**HEADERS, "Nats-Msg-Id": f"again:{stream}:{sequence}:task"}
            await _put(recorder, TASK.format(mode=task["mode"]), msgpack.packb(task), headers)
