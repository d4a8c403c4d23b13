"""A whole run in one place, every process real, and every connection to the bus through a proxy of its own."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer, free_port
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.readiness import READY_STATES
from lightningbus.bus.streams.specs import DEFAULT_POLICIES, GRADERS
from lightningbus.common.aio import cancel_and_wait, first_completed
from lightningbus.graders.settings import GraderSettings
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.processes.supervisor import ChildSpec, Supervisor
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas import subjects
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.embedded.serving import writer_url
from lightningbus.store.settings import StoreSettings
from tests.chaos.proxy import Proxy
from tests.chaos.tap import CONSUMERS, Tap
from tests.polling import until_answered

ROOT = Path(__file__).resolve().parents[2]
AGENTS = ROOT / "tests" / "agents"
CALCULATOR = ROOT / "examples" / "calculator"
STAND_IN = [sys.executable, str(ROOT / "tests" / "chaos" / "vllm.py")]
CLICKHOUSE = [sys.executable, "-P", "-m", "tests.chaos.clickhouse"]
RUN, SAMPLES, GROUPS = "chaos", 8, 8
LEASE_SECONDS = 5.0
ENTRYPOINT = "steady:solve"
TEACHER = "inference-teacher"


@dataclass
class RunningSystem:
    """What a fault may hit, by name: roles by their own, engines as ``engine-0``, the broker as ``nats``."""

    directory: Path
    steps: int
    bus: Bus
    fleet: Fleet
    nats: NatsServer
    tap: Tap
    store: StoreSettings
    brokers: list[NatsServer]
    supervisors: dict[str, Supervisor] = field(default_factory=dict)
    proxies: dict[str, Proxy] = field(default_factory=dict)
    others: dict[str, Supervisor] = field(default_factory=dict)
    learners: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    """By name: waits for the end of its training."""
    state_was_lost: bool = False
    """The bus lost acknowledged data, so not all of it can be in the store."""
    was_set_back: bool = False
    """A learner went on from an older state, so it makes steps of others again, of other rollouts."""
    children: dict[str, ChildSpec] = field(default_factory=dict)

    @property
    def targets(self) -> list[str]:
        """Everything that can be hit."""
        engines = [name.replace("inference", "engine") for name in self.supervisors if name.startswith("inference")]
        return [*self.supervisors, *engines, "nats"]

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has."""
        return int(json.loads((self.directory / "model" / "config.json").read_text())["vocab_size"])

    def sql(self) -> Client:
        """A client of the store, whoever runs it."""
        return connect(writer_url(self.store.data_dir, f"http://127.0.0.1:{self.store.http_port}"))

    def pid(self, target: str) -> int | None:
        """Its process now; None while it has none."""
        if target == "nats":
            process = self.nats.process
            return process.pid if process is not None and process.returncode is None else None
        if target.startswith("engine"):
            node = self.pid(target.replace("engine", "inference"))
            try:
                children = psutil.Process(node).children() if node else []
            except psutil.NoSuchProcess:
                return None
            return next((child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE), None)
        return self.supervisors[target].pids().get(target)

    def signal(self, target: str, number: signal.Signals) -> int | None:
        """Send a signal; returns the process hit, None if there was none."""
        pid = self.pid(target)
        if pid is not None:
            os.kill(pid, number)
        return pid

    async def working(self, target: str, since: float, old: int | None = None) -> None:
        """Wait until a target does its work again and has said so since a moment (`time.monotonic`).

        ``old``: as another process than this one.
        """
        if target == "nats":
            while self.pid(target) in (None, old) or not await self._answers():
                await asyncio.sleep(0.02)
            return
        name = target.replace("engine", "inference")
        while not (self._works(name, since) and self.pid(target) not in (None, old)):
            if name in self.learners and self.learners[name].done():
                return
            await self.fleet.wait_for_change()

    def _works(self, name: str, since: float) -> bool:
        # Heard, not sent: a process whose clock is wrong works all the same.
        beat, received = next((text for (_, id), text in self.fleet._last_seen.items() if id == name), (None, 0.0))
        return beat is not None and received > since and beat.state in READY_STATES[beat.role]

    async def _answers(self) -> bool:
        try:
            await self.bus.js.account_info()
        except Exception:  # any kind of no
            return False
        return True

    async def take_down(self, name: str) -> ChildSpec:
        """Stop a role as its operator would; returns what `bring_up` needs."""
        if name in self.learners:
            await cancel_and_wait(self.learners[name])
        await self.supervisors[name].stop(name)
        return self.children[name]

    async def bring_up(self, child: ChildSpec) -> None:
        """Start a role that was taken down."""
        await self.supervisors[child.name].start(child)
        if child.role == "learner":
            self.learners[child.name] = asyncio.create_task(self.supervisors[child.name].wait_finished(child.name))

    async def alert_is_stored(self, text: str, since: int, seconds: float = 120.0) -> None:
        """Wait until ClickHouse has an alert about a role, or with this text, fired after ``since`` (Unix ns)."""
        sql = self.sql()
        query = (
            "SELECT count() FROM alerts WHERE NOT resolved AND toUnixTimestamp64Nano(fired_at) > {since:Int64}"
            " AND (role = {text:String} OR position(reason, {text:String}) > 0)"
        )
        async with asyncio.timeout(seconds):
            while not sql.query(query, parameters={"text": text, "since": since}).result_rows[0][0]:
                await asyncio.sleep(0.5)

    async def runner(self, name: str, **settings: Any) -> None:
        """One more runner, of an agent of its own; stopped with the system."""
        fields = {
            "agent_name": name,
            "id": name,
            "working_dir": AGENTS,
            "ack_wait": LEASE_SECONDS,
            "concurrency": 2,
            **settings,
        }
        supervisor = self.others[name] = Supervisor(RunDirectory(self.directory / "run"), self.nats.url)
        await supervisor.start(ChildSpec(name, "runner", RunnerSettings.model_validate(fields)))
        async with asyncio.timeout(90):
            while not any(beat.id == name and beat.state == "running" for beat in self.fleet.members()):
                await self.fleet.wait_for_change()

    async def failed(self) -> None:
        """Wait until a role has failed for good, and raise what it says; never returns otherwise."""
        await first_completed(*(supervisor.wait_for_failure() for supervisor in self.supervisors.values()))

    async def finished(self, seconds: float) -> None:
        """Wait until each learner has made its last step and everything published has been written."""
        assert self.learners
        async with asyncio.timeout(seconds):
            await asyncio.gather(*self.learners.values())
            await self.drained()

    async def drained(self) -> None:
        """Wait until no task is left, none waits for a grade, and the store has written every event."""
        js = self.bus.js
        while True:
            queues = [
                (await until_answered(partial(js.stream_info, stream))).state.messages
                for stream in (subjects.TASKS, subjects.GRADING)
            ]
            readers = [
                await until_answered(partial(js.consumer_info, consumer.stream, name))
                for consumer in CONSUMERS
                for name in ("store", "tap")
            ]
            if not any(queues) and not any(reader.num_pending or reader.num_ack_pending for reader in readers):
                return
            await asyncio.sleep(0.2)

    def memory(self) -> dict[str, float]:
        """Resident memory of each process now, in MiB."""
        by_name = {}
        for target in self.targets:
            try:
                by_name[target] = (
                    psutil.Process(self.pid(target)).memory_info().rss / 2**20 if self.pid(target) else 0.0
                )
            except psutil.NoSuchProcess:
                continue
        return by_name


@asynccontextmanager
async def run_system(
    directory: Path,
    *,
    steps: int,
    nodes: int = 2,
    runners: int = 2,
    token_seconds: float = 0.05,
    server: bool = False,
    brokers: Sequence[NatsServer] = (),
    learner: Mapping[str, Any] | None = None,
    store: Mapping[str, Any] | None = None,
    models: Sequence[str] = DEFAULT_POLICIES,
    entrypoint: str = ENTRYPOINT,
    more: Sequence[ChildSpec] = (),
) -> AsyncIterator[RunningSystem]:
    """Everything started and working; gone at the end.

    ``server``: ClickHouse apart from the store, behind a proxy. ``brokers``: a cluster that runs already, which
    everybody reaches without a proxy. ``token_seconds``: how long the engines take for a token. ``learner``, ``store``:
    more of their settings. ``models``: each has a learner, and ``nodes`` of its own. ``more``: further processes, which
    start before the runners; with a grader among them the runners leave the rewards to it.
    """
    async with AsyncExitStack() as exits:
        skews = directory / "skews"
        skews.mkdir()
        os.environ |= {"PYTHONPATH": f"{ROOT / 'tests' / 'chaos' / 'skewed'}:{ROOT}", "CHAOS_SKEWS": str(skews)}
        broker = brokers[0] if brokers else NatsServer(directory / "nats")
        if not brokers:
            await broker.start()
            exits.push_async_callback(broker.stop)
        url = ",".join(item.url for item in brokers or [broker])
        bus = await exits.enter_async_context(Bus.connect(url, name="chaos"))
        await bus.provision(len(brokers) or None, policies=models)
        if any(child.role == "grader" for child in more):  # whose settings have no lease
            await bus.ensure_consumer(replace(GRADERS, ack_wait=LEASE_SECONDS))
        fleet = await exits.enter_async_context(bus.fleet("*"))
        tap = await exits.enter_async_context(Tap(bus).listening())
        system = RunningSystem(
            directory, steps, bus, fleet, broker, tap, store_settings(directory, store or {}), list(brokers)
        )
        runs = RunDirectory(directory / "run").create()
        for item in brokers or [broker]:
            exits.push_async_callback(cancel_and_wait, asyncio.create_task(item.supervise()))
        nodes_and_learners = policy_children(directory, steps, nodes, token_seconds, learner or {}, models)
        for child in children(nodes_and_learners, runners, system.store, entrypoint, more):
            proxy = await exits.enter_async_context(Proxy(lambda: ("127.0.0.1", broker.port)))
            system.proxies[child.name] = proxy
            reach = url if brokers else f"nats://127.0.0.1:{proxy.port}"
            system.supervisors[child.name] = supervisor = Supervisor(runs, reach)
            exits.push_async_callback(supervisor.stop_all)
            settings = child.settings
            if isinstance(settings, StoreSettings):
                system.store = settings
                if server:
                    settings = await _apart(system, exits, settings)
            if isinstance(settings, InferenceSettings):
                settings = await _behind(system, exits, settings, child.name)
            started = time.monotonic()
            system.children[child.name] = ChildSpec(child.name, child.role, settings)
            await supervisor.start(system.children[child.name])
            if child.role == "learner":
                waiting = asyncio.create_task(supervisor.wait_finished(child.name))
                system.learners[child.name] = waiting
                exits.push_async_callback(cancel_and_wait, waiting)
            if child.role == "store":
                async with asyncio.timeout(90):
                    await system.working("store", started)
        try:
            yield system
        finally:
            await asyncio.gather(*(other.stop_all() for other in system.others.values()))


async def _apart(system: RunningSystem, exits: AsyncExitStack, settings: StoreSettings) -> StoreSettings:
    proxy = await exits.enter_async_context(Proxy(lambda: ("127.0.0.1", settings.http_port)))
    system.proxies["clickhouse"] = proxy
    command = [*CLICKHOUSE, str(settings.data_dir), str(settings.http_port)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    exits.callback(process.kill)
    assert process.stdout is not None and await process.stdout.readline(), "ClickHouse did not start"
    return settings.model_copy(update={"url": writer_url(settings.data_dir, f"http://127.0.0.1:{proxy.port}")})


async def _behind(
    system: RunningSystem, exits: AsyncExitStack, settings: InferenceSettings, name: str
) -> InferenceSettings:
    port = free_port()
    proxy = await exits.enter_async_context(Proxy(lambda: ("127.0.0.1", port)))
    system.proxies[f"{name}-gateway"] = proxy
    return settings.model_copy(update={"port": port, "advertise_url": f"http://127.0.0.1:{proxy.port}"})


def children(
    policies: Sequence[ChildSpec],
    runners: int,
    store: StoreSettings,
    entrypoint: str = ENTRYPOINT,
    more: Sequence[ChildSpec] = (),
) -> list[ChildSpec]:
    """The processes of the run, in the order they start: the store, nodes, ``more``, runners, learners."""
    is_graded = any(child.role == "grader" for child in more)
    specs = [ChildSpec("store", "store", store)]
    specs += [*(child for child in policies if child.role == "inference"), *more]
    for number in range(runners):
        settings = runner_settings(f"runner-{number}", entrypoint, is_graded)
        specs.append(ChildSpec(f"runner-{number}", "runner", settings))
    return specs + [child for child in policies if child.role == "learner"]


def policy_children(
    directory: Path,
    steps: int,
    nodes: int,
    token_seconds: float,
    learner: Mapping[str, Any],
    models: Sequence[str] = DEFAULT_POLICIES,
) -> list[ChildSpec]:
    """The nodes and the learner of each model; the first one's have no model in their names."""
    specs = []
    for model in models:
        suffix = "" if model == models[0] else f"-{model}"
        for number in range(nodes):
            name = f"inference{suffix}-{number}"
            specs.append(ChildSpec(name, "inference", node_settings(directory, name, token_seconds, model)))
        if steps:
            name = f"learner{suffix}"
            place = {"id": name, "model": model, "task_model": models[0]}
            where = directory / f"checkpoints{suffix}"
            settings = learner_settings(directory, steps, {"checkpoint_dir": where, **place, **learner})
            specs.append(ChildSpec(name, "learner", settings))
    return specs


def store_settings(directory: Path, more: Mapping[str, Any] = MappingProxyType({})) -> StoreSettings:
    """The embedded store of a run."""
    fields = {"data_dir": directory / "store", "http_port": free_port(), "flush_interval_seconds": 0.2, "id": "store"}
    return StoreSettings.model_validate({**fields, **more})


def node_settings(
    directory: Path, name: str, token_seconds: float, model: str = DEFAULT_POLICIES[0]
) -> InferenceSettings:
    """A node whose engine is a stand-in."""
    command = [*STAND_IN, "--token-seconds", str(token_seconds)]
    return InferenceSettings(
        model_path=directory / "model", model=model, id=name, vllm_command=command, max_model_len=256,
        work_dir=directory / name,
    )  # fmt: skip


def runner_settings(name: str, entrypoint: str = ENTRYPOINT, is_graded: bool = False) -> RunnerSettings:
    """A runner of one of the agents for tests."""
    return RunnerSettings(
        entrypoint=entrypoint, working_dir=AGENTS, concurrency=4, id=name, ack_wait=LEASE_SECONDS, graded=is_graded
    )


def teacher_child(directory: Path, seconds: float) -> ChildSpec:
    """A frozen node whose engine is a stand-in that takes so long to score a prompt."""
    settings = node_settings(directory, TEACHER, 0.0, "teacher")
    command = [*(settings.vllm_command or STAND_IN), "--teacher-seconds", str(seconds)]
    return ChildSpec(TEACHER, "inference", settings.model_copy(update={"frozen": True, "vllm_command": command}))


def grader_child(function: str) -> ChildSpec:
    """The grader of a run, by a function beside the agents for tests."""
    fields = {"id": "grader", "graders": {"mark": {"function": function}}, "working_dir": AGENTS}
    return ChildSpec("grader", "grader", GraderSettings.model_validate(fields))


def learner_settings(directory: Path, steps: int, more: Mapping[str, Any]) -> LearnerSettings:
    """A learner of the run; ``more`` of its settings."""
    return LearnerSettings.model_validate(
        {
            "id": "learner", "run": RUN, "model_path": directory / "model", "tasks": directory / "tasks.jsonl",
            "group_size": SAMPLES, "groups_per_step": GROUPS, "max_steps": steps, "max_staleness": 2, "cpu_threads": 1,
            "rollout_timeout_seconds": 120.0, "max_attempts": 30,
            "checkpoint_dir": directory / "checkpoints",
            "seq_len": 128, "group_timeout_seconds": 120.0,
            "engine": {"check_model": False}, "actor": {"optim": {"lr": 1e-5}}, **more,
        }
    )  # fmt: skip
