"""The probes and metrics of real roles: ready, cut off from the bus, back again, draining; their log as objects."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import save_file

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.fleet.readiness import not_ready_reason
from lightningbus.bus.streams.specs import STORE_TRAIN
from lightningbus.common import disk_space
from lightningbus.common.observability import logs, metric_registry
from lightningbus.common.observability.log_format import FORMAT_VARIABLE
from lightningbus.common.role_settings import parse_address
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.weights.events import WeightManifest
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.clickhouse_proxy import ClickHouseProxy
from tests.factories import batches
from tests.learner.conftest import tiny_model
from tests.pausing import paused
from tests.polling import HANG_SECONDS
from tests.runners.conftest import AGENTS, ended
from tests.store.conftest import prepared

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = [sys.executable, str(ROOT / "tests" / "chaos" / "vllm.py")]


@dataclass(eq=False)
class Role:
    """A role's process, and where its probes are answered."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    url: str = ""
    is_stopping: bool = False

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        timeout = aiohttp.ClientTimeout(total=HANG_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self.url + path) as answer:
            return answer.status, (await answer.text()).strip()

    async def becomes(self, status: int, seconds: float = HANG_SECONDS) -> str:
        """Wait until ``/readyz`` has a status; returns what it says."""
        async with asyncio.timeout(seconds):
            while (actual := await self.get("/readyz"))[0] != status:
                await asyncio.sleep(0.05)  # a probe asks; nobody tells it
        return actual[1]

    async def metrics(self) -> dict[str, float]:
        """Every sample by name, those of all labels together."""
        _, body = await self.get("/metrics")
        by_name: dict[str, float] = {}
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                by_name[sample.name] = by_name.get(sample.name, 0) + sample.value
        return by_name

    async def moves(self, name: str, seconds: float = HANG_SECONDS) -> dict[str, float]:
        """Wait until a metric is above 0."""
        async with asyncio.timeout(seconds):
            while not (metrics := await self.metrics()).get(name):
                await asyncio.sleep(0.05)
        return metrics

    def ask_to_stop(self) -> None:
        """SIGTERM, once: a second one would stop it at once."""
        if not self.is_stopping and self.process.returncode is None:
            self.process.terminate()
        self.is_stopping = True

    async def stopped(self) -> int:
        """Its exit code, asked to stop."""
        self.ask_to_stop()
        return await asyncio.wait_for(self.process.wait(), HANG_SECONDS)

    def lines(self) -> list[dict[str, Any]]:
        """Its log; raises where a line is no object."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


Start = Callable[..., Awaitable[Role]]


@pytest.fixture
async def start(nats_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a role by the command line, as users do; its settings by name."""
    running: list[Role] = []

    async def start(name: str, **settings: Any) -> Role:
        file, log = tmp_path / f"{name}.json", tmp_path / f"{name}.log"
        file.write_text(json.dumps({"id": name, "health_address": "0", **settings}, default=str))
        command = [sys.executable, "-m", "lightningbus", name, "--bus", nats_url, "--settings", str(file)]
        with log.open("wb") as out:
            env = {**os.environ, FORMAT_VARIABLE: "json"}
            process = await asyncio.create_subprocess_exec(*command, stderr=out, stdout=out, cwd=tmp_path, env=env)
        running.append(role := Role(name, process, log))
        async with asyncio.timeout(HANG_SECONDS):
            while "health at " not in (text := log.read_text()):
                assert process.returncode is None, text
                await asyncio.sleep(0.05)
        role.url = text.partition("health at ")[2].partition('"')[0]
        return role

    yield start
    for role in reversed(running):
        assert await role.stopped() == 0, role.log.read_text()[-2000:]


async def served(bus: Bus, directory: Path) -> None:
    """A first version on the bus, where no learner publishes one."""
    save_file({"x": np.zeros(4, np.float32)}, directory / "w.safetensors")
    blob = await bus.object_store.put(subjects.WEIGHT_BUCKET, "policy-0", directory / "w.safetensors")
    manifest = WeightManifest(run_id="r", model="policy", version=0, blobs=(blob,), epoch=1, step=0, created_at_ns=1)
    await bus.publish(subjects.weights("policy"), manifest, msg_id="w0")


async def test_every_role_says_whether_it_can_work_and_what_it_has_done(
    bus: Bus, nats: NatsServer, start: Start, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"id": "t{n}", "input": {n}}}\n' for n in range(8)))
    node = await start(
        "inference", model_path=model, vllm_command=STAND_IN, work_dir=tmp_path / "work", max_model_len=128
    )
    assert (await node.get("/healthz"))[0] == 200
    reasons = ("inference is starting", "inference is awaiting_weights")
    assert (await node.becomes(503)).startswith(reasons), "nobody has published weights"
    small = {"group_size": 2, "groups_per_step": 1, "max_steps": 100_000, "cpu_threads": 1, "seq_len": 128}
    learner = await start("learner", model_path=model, tasks=tmp_path / "tasks.jsonl", **small)
    assert (await learner.becomes(503)).startswith(("learner is not connected to the bus", "learner is starting"))
    store = await start("store", data_dir=tmp_path / "store", http_port=0)
    runner = await start("runner", entrypoint="plain:asks", working_dir=AGENTS, concurrency=2)
    roles = [node, learner, store, runner]
    for role in roles:
        assert await role.becomes(200) == "ok", role.name

    moved = {
        runner: [
            "runner_tasks_received_total",
            "runner_attempts_total",
            "runner_attempt_duration_seconds_count",
            "runner_gateway_requests_total",
            "runner_slots",
        ],
        learner: [
            "learner_steps_total",
            "learner_trained_tokens_total",
            "learner_rollouts_total",
            "bus_publish_duration_seconds_count",
        ],
        node: [
            "inference_requests_total",
            "inference_weight_swap_pause_seconds_count",
            "inference_weight_fetch_seconds_sum",
            "inference_weight_version",
        ],
        store: ["store_rows_inserted_total", "store_bytes_total", "store_insert_duration_seconds_count", "ready"],
    }
    for role, names in moved.items():
        for name in names:
            await role.moves(f"lightningbus_{name}")
    assert (await runner.moves("lightningbus_runner_tokens_total"))["lightningbus_runner_slots"] == 2
    entered = {entry.name.partition("{")[0]: entry.role for entry in metric_registry.METRIC_DOCS}
    for role in roles:
        metrics = {name for name in await role.metrics() if name.startswith("lightningbus_")}
        of = {entered[re.sub("_(bucket|count|sum)$", "", name)] for name in metrics}
        assert of == {"common", role.name}, "each has its own, and all are entered"

    await nats.kill()
    for role in roles:
        assert await role.becomes(503) == f"{role.name} is not connected to the bus"
        assert (await role.get("/healthz"))[0] == 200, "a restart would not fix that"
    await nats.start()
    for role in roles:
        await role.becomes(200)
        assert (await role.metrics())["lightningbus_bus_reconnects_total"] >= 1

    for role in (node, store, runner):
        for line in role.lines():
            assert {"time", "level", "role", "logger", "message"} <= line.keys() and line["role"] == role.name
    steps = [line for line in map(words, learner.log.read_text().splitlines()) if "step 1/" in line.get("message", "")]
    assert [(line["role"], line["run"]) for line in steps] == [("learner", "run")]


def words(line: str) -> dict[str, Any]:
    """A line of ours, or nothing: verl's libraries print what they like."""
    return dict(json.loads(line)) if line.startswith("{") else {}


async def test_a_runner_asked_to_stop_is_not_ready_and_finishes_what_it_has(
    bus: Bus, start: Start, tmp_path: Path
) -> None:
    program = "while [ ! -e go ]; do sleep 0.05; done; echo '{\"reward\": 1}'"
    runner = await start(
        "runner", command=["sh", "-c", program], working_dir=tmp_path, concurrency=1, drain_timeout_seconds=HANG_SECONDS
    )
    await runner.becomes(200)
    await TaskPublisher(bus).publish_task(Task(id="t", run_id="run", agent="default", input=1, mode="eval"))
    await runner.moves("lightningbus_runner_slots_in_use")
    runner.ask_to_stop()
    assert await runner.becomes(503) == "runner is draining"
    (tmp_path / "go").touch()
    (end,) = await ended(bus)
    assert end.end is not None and (end.end.outcome, end.end.reward) == ("ok", 1.0)


@pytest.mark.long
async def test_a_store_whose_clickhouse_is_silent_is_not_ready(bus: Bus, start: Start, tmp_path: Path) -> None:
    with prepared(tmp_path / "clickhouse") as clickhouse:
        store = await start("store", url=clickhouse.url)
        await store.becomes(200)
        with paused(clickhouse.process.pid):
            expected = await store.becomes(503)
        assert expected == "store is waiting: ClickHouse takes nothing: it does not answer"
        await store.becomes(200)
        assert await store.stopped() == 0


@pytest.mark.long
async def test_a_clickhouse_that_answers_pings_alone_makes_the_store_not_ready_and_holds_no_stop(
    bus: Bus, start: Start, tmp_path: Path
) -> None:
    with prepared(tmp_path / "clickhouse") as clickhouse:
        async with ClickHouseProxy(clickhouse.url) as proxy:
            store = await start("store", url=proxy.url)
            await store.becomes(200)
            proxy.is_silent = True
            assert await store.becomes(503) == "store is waiting: ClickHouse takes nothing: it does not answer"
            batch = batches("a", 0)[0]
            await bus.publish(subjects.rollout(batch.mode), batch, msg_id="a")
            async with asyncio.timeout(HANG_SECONDS):
                await proxy.has_insert.wait()
            assert await store.stopped() == 0
    backlog = await bus.backlog(STORE_TRAIN)
    assert backlog.num_ack_pending + backlog.num_pending == 1


async def test_a_node_asked_to_stop_answers_what_it_has_begun(bus: Bus, start: Start, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    await served(bus, tmp_path)
    command = [*STAND_IN, "--token-seconds", "0.1"]
    node = await start(
        "inference", model_path=model, vllm_command=command, work_dir=tmp_path / "work", max_model_len=128
    )
    await node.becomes(200)
    async with bus.fleet("inference") as fleet, aiohttp.ClientSession() as session:
        await fleet.wait_for_change()
        (beat,) = fleet.members()
        request = {"model": "policy", "prompt": [1, 2, 3], "max_tokens": 16, "stream": True}
        async with session.post(f"{beat.address}/v1/completions", json=request) as answer:
            await answer.content.readuntil(b"\n\n")
            node.ask_to_stop()
            rest = await answer.read()
    assert rest.rstrip().endswith(b"[DONE]")


async def test_a_port_in_use_is_one_sentence_also_as_an_object(nats_url: str) -> None:
    command = [sys.executable, "-m", "lightningbus", "--log-format", "json", "runner", "--bus", nats_url]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = [*command, "--command", "true", "--health-address", port]
        done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=HANG_SECONDS)
    (line,) = done.stderr.splitlines()
    text = json.loads(line)
    assert (done.returncode, text["level"], text["role"]) == (2, "critical", "runner")
    assert text["message"].startswith(f"health: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert logs.extract_message(line) == text["message"], "which is what a supervisor repeats"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (9464, ("127.0.0.1", 9464)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::]:9464", ("::", 9464)),
    ],
)
def test_where_probes_are_answered_is_a_port_or_an_address(fields: object, expected: tuple[str, int]) -> None:
    health = RunnerSettings.model_validate({"command": ["true"], "health_address": fields}).health_address
    assert health is not None and parse_address(health) == expected


@pytest.mark.parametrize(("role", "state"), [("learner", "training"), ("store", "inserting")])
def test_a_role_whose_disk_is_nearly_full_is_not_ready_and_says_so(tmp_path: Path, role: str, state: str) -> None:
    free = disk_space.free_bytes(tmp_path / "not" / "made" / "yet")
    assert disk_space.record_free("checkpoints", free, least_mib=0) == ""
    short = disk_space.record_free("checkpoints", 5 * disk_space.MIB, least_mib=1024)
    beat = Heartbeat(role=role, id="x", state=state, status={"disk": short}, sent_at_ns=1)  # type: ignore[arg-type]
    assert not_ready_reason(beat) == f"{role} is {state}: {short}"
    assert short == "the disk of the checkpoints has 5 MiB free, and 1024 are wanted: make room"
