"""All roles of a run under one supervisor, from a run file."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import free_port, nats_server
from lightningbus.bus.fleet.heartbeats import Fleet, default_instance_id
from lightningbus.bus.fleet.node_state import is_serving
from lightningbus.bus.security.credentials import FILE, Credentials
from lightningbus.bus.security.permissions import PERMISSIONS
from lightningbus.bus.security.secrets import CONF, INFERENCE_API_KEY, new_key, write_secret
from lightningbus.bus.security.signing import make_keys
from lightningbus.bus.security.users import allow_policies, create_users
from lightningbus.bus.streams.specs import DEFAULT_POLICIES, ConsumerSpec, runner_consumers
from lightningbus.common.aio import cancel_and_wait, first_completed, run_unless
from lightningbus.common.listeners import is_loopback
from lightningbus.common.loopback_proxies import bypass_loopback
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.display.live_view import LiveView, console
from lightningbus.run.display.notebook_view import choose_view
from lightningbus.run.errors import UserError
from lightningbus.run.processes.members import NODE_SECONDS, find_member, wait_for_store
from lightningbus.run.processes.process_liveness import LivenessWatch
from lightningbus.run.processes.role_process import on_stop_signals
from lightningbus.run.processes.steps_left import check_steps_left
from lightningbus.run.processes.supervisor import ChildSpec, Supervisor
from lightningbus.run.run_directory.directory import Endpoints, RunDirectory
from lightningbus.run.run_directory.discovery import (
    API_KEY_VARIABLE,
    CREDENTIALS_VARIABLE,
    find_api_key,
    find_credentials_directory,
)
from lightningbus.run.run_directory.recorded_settings import record_settings
from lightningbus.run.settings.hub_models import check_model_directories
from lightningbus.run.settings.run_file import BusSettings, RunSettings
from lightningbus.run.settings.served_policy import follow_nodes
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.trackers.run_trackers import follow_run

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyPaths:
    """Paths of a run's keys: the directory with every role's credentials, and the file with the inference API key."""

    credentials: Path | None = None
    inference_api_key: Path | None = None
    users: Path | None = None
    """Directory of the users that the server authenticates; None: ``credentials`` holds signing keys only."""

    @classmethod
    def create(cls, directory: RunDirectory, settings: BusSettings, policies: Sequence[str]) -> "KeyPaths":
        """Find the keys that settings or environment name, and create those that an embedded bus lacks.

        These are the inference API key, the signing keys of weight versions and decisions, and the users. Users are not
        created for a bus that is ``insecure`` or listens beyond loopback: there an operator creates them. Learners
        among these users may train ``policies`` and no other model.
        """
        users = credentials_dir = settings.credentials or find_credentials_directory()
        if credentials_dir is None and settings.url is None and is_loopback(settings.host) and not settings.insecure:
            users = credentials_dir = directory.credentials
            if not (credentials_dir / CONF).exists():
                shutil.rmtree(credentials_dir, ignore_errors=True)  # of a run that ended while it made them
                list(create_users(credentials_dir, tls=False, policies=policies))
            allow_policies(credentials_dir, policies)
        key = find_api_key("inference", credentials_dir)
        if credentials_dir is None and settings.url is None:
            credentials_dir = directory.credentials
            if not credentials_dir.exists():
                make_keys(credentials_dir, PERMISSIONS, FILE)
        if key is None and settings.url is None:
            key = directory.path / INFERENCE_API_KEY
            if not key.exists():
                write_secret(key, new_key() + "\n")
        return cls(credentials_dir and credentials_dir.resolve(), key and key.resolve(), users and users.resolve())

    def environment(self) -> dict[str, str]:
        """Return the environment variables that tell child processes these paths."""
        variables = {CREDENTIALS_VARIABLE: self.credentials, API_KEY_VARIABLE: self.inference_api_key}
        return {name: str(path) for name, path in variables.items() if path is not None}


@dataclass(frozen=True, slots=True)
class LocalStack:
    """A bus with a supervisor of its roles, as `up`, `train` and the demo use them."""

    directory: RunDirectory
    bus: Bus
    url: str
    fleet: Fleet
    supervisor: Supervisor
    view: LiveView
    keys: KeyPaths

    async def wait_for_member(self, fits: Callable[[Heartbeat], bool], what: str, seconds: float) -> Heartbeat:
        """Wait for a heartbeat that satisfies the predicate; raises `UserError` if a child fails, or on timeout."""
        try:
            async with asyncio.timeout(seconds):
                return await self.or_child_failure(find_member(self.fleet, fits))
        except TimeoutError:
            raise UserError(f"no {what} within {seconds:g} s: see {self.directory.path / 'logs'}") from None

    async def wait_for_store(self) -> Heartbeat:
        """Wait for the store's heartbeat; raise `UserError` if a child fails, or the store's process hangs."""
        return await self.or_child_failure(wait_for_store(self.fleet, self.supervisor, self.directory.log("store")))

    async def wait_until_served(self, versions: Mapping[str, int]) -> None:
        """Wait for a node that serves the version of each model; raises as `wait_for_member`."""
        for model, version in versions.items():
            serves = partial(is_serving, model=model, version=version)
            await self.wait_for_member(serves, f"node with version {version} of {model!r}", NODE_SECONDS)

    async def or_child_failure(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``; raises `UserError` as soon as a child fails for good."""
        return await run_unless(self.supervisor.wait_for_failure(), work)

    def find_credentials(self, role: str) -> Credentials | None:
        """Return a role's user and signing keys; None on a bus without any."""
        return Credentials.read(self.keys.credentials, role) if self.keys.credentials is not None else None

    def write_endpoints(self, sql: str = "") -> None:
        """Write the servers' addresses into the run's directory, so that other terminals find them."""
        roles, credentials, key = (
            self.supervisor.pids(),
            str(self.keys.credentials or ""),
            str(self.keys.inference_api_key or ""),
        )
        self.directory.write_endpoints(Endpoints(os.getpid(), self.url, sql, credentials, key, roles))

    def trackers(self, settings: RunSettings, learners: Sequence[LearnerSettings]) -> AbstractAsyncContextManager[None]:
        """Log the run's metrics to its trackers while the block runs; raises `UserError` if it has no store."""
        if settings.trackers.enabled and settings.store is None:
            raise UserError("trackers: the metrics are read from the store: add a store to the run file")

        def find_store() -> tuple[str, str]:
            endpoints = self.directory.read_endpoints()
            assert settings.store is not None, "checked above"
            address = settings.store.url or (endpoints.sql if endpoints is not None else "")
            return address, settings.store.database

        names = [f"learners.{learner.model}" if len(learners) > 1 else "learner" for learner in learners]
        sections: dict[str, BaseModel | None] = {**dict(zip(names, learners, strict=True)), "eval": settings.eval}
        config = {name: section.model_dump(mode="json") for name, section in sections.items() if section is not None}
        max_staleness = max((learner.max_staleness for learner in learners), default=0)
        return follow_run(self.directory.path, settings.trackers, find_store, config, max_staleness, settings.policies)


@asynccontextmanager
async def start_stack(
    directory: RunDirectory,
    settings: BusSettings,
    title: str,
    policies: Sequence[str] = DEFAULT_POLICIES,
    *,
    is_evaluation: bool = False,
) -> AsyncIterator[LocalStack]:
    """Run bus, supervisor and view while the block runs; children are stopped in order at its end.

    ``policies`` are the models that learners train. An evaluation does not become the latest run in place of a
    training.
    """

    def make_latest() -> None:
        if not (is_evaluation and directory.is_beside_training()):
            directory.make_latest()

    os.environ.update(bypass_loopback(os.environ))  # Python programs start children and trackers here.
    async with AsyncExitStack() as exits:
        exits.callback(directory.clear_endpoints)
        keys = KeyPaths.create(directory, settings, policies)
        url, server = settings.url, None
        if url is None:
            bus_directory = directory.path / "bus"
            server = await exits.enter_async_context(
                nats_server(
                    bus_directory, settings.host, settings.port, settings.sync_interval, keys.users, settings.insecure,
                    settings.streams.more_mib,
                )
            )  # fmt: skip
            url = server.url
        credentials = Credentials.read(keys.credentials, "admin") if keys.credentials is not None else None
        bus = await exits.enter_async_context(Bus.connect(url, name="supervisor", credentials=credentials))
        await bus.provision(sizes=settings.streams, policies=policies)
        fleet = await exits.enter_async_context(bus.fleet("*"))

        durables: list[ConsumerSpec] = []

        async def prepare(child: ChildSpec) -> None:
            if isinstance(child.settings, RunnerSettings):  # who may take from a durable may not make it
                for consumer in runner_consumers(child.settings.agent_name, child.settings.ack_wait):
                    await bus.ensure_consumer(consumer)
                    durables.append(consumer)

        supervisor = Supervisor(directory, url, keys.environment(), prepare)
        supervisor.watch(bus.raise_failure())
        if server is not None:
            supervisor.watch(server.supervise())
        liveness = LivenessWatch(bus, fleet, supervisor, make_latest, owns_bus=server is not None)
        await exits.enter_async_context(
            bus.heartbeat("supervisor", default_instance_id(directory.path.name), liveness.describe)
        )
        watching = asyncio.create_task(liveness.run())
        exits.push_async_callback(cancel_and_wait, watching)
        supervisor.watch(bus.keep_provisioned(settings.streams, durables, policies))
        exits.push_async_callback(supervisor.stop_all)
        view = await exits.enter_async_context(choose_view(fleet, title).showing())
        stack = LocalStack(directory, bus, url, fleet, supervisor, view, keys)
        stack.write_endpoints()
        if not directory.is_beside_another():  # beside one that is up it becomes the latest once it has started
            make_latest()
        yield stack


async def up(settings: RunSettings) -> None:
    """Run every role of a run file until Ctrl-C, or until the learner has made its last step."""
    check_model_directories(settings)
    check_steps_left(settings.name, complete_learner_settings(settings, settings.runs / settings.name).values())
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    title = f"lightningbus up · {settings.name}"
    with RunDirectory(settings.runs / settings.name).lock() as directory:
        record_settings(directory, settings)
        async with (
            start_stack(directory, settings.bus, title, settings.policies) as stack,
            stack.trackers(settings, settings.all_learners),
        ):
            await run_roles(stack, settings, stop)
    if settings.all_learners:
        for command in directory.list_export_commands():
            console().print(f"export the model: {command}", highlight=False, soft_wrap=True)


async def run_roles(stack: LocalStack, settings: RunSettings, stop: asyncio.Event) -> None:
    """Run every role of a run file until ``stop`` is set, or until the learners have made their last step."""
    for child in child_specs(settings, stack.directory.path):
        await stack.supervisor.start(child)
    if settings.store is not None:
        store = await stack.wait_for_store()
        stack.write_endpoints(store.address)
    stack.view.set_phase("running; Ctrl-C stops")
    ends: list[Awaitable[object]] = [stop.wait()]
    if names := learner_names(settings):
        ends.append(asyncio.gather(*map(stack.supervisor.wait_finished, names)))
    await stack.or_child_failure(first_completed(*ends))
    stack.view.set_phase("stopping")


def child_specs(settings: RunSettings, where: Path) -> list[ChildSpec]:
    """Return the processes of a run in their start order; paths left at their defaults lie in the run's directory."""
    specs: list[ChildSpec] = []
    if settings.store is not None:
        placed_store = _with_defaults(settings.store, data_dir=where / "store")
        if placed_store.http_port == 0:  # chosen here, so that a store that is started again is found where it was
            placed_store = placed_store.model_copy(update={"http_port": free_port(placed_store.host)})
        specs.append(ChildSpec("store", "store", placed_store))
    for number, node in enumerate(settings.inference):
        name = f"inference-{number}"
        specs.append(ChildSpec(name, "inference", _with_defaults(node, work_dir=where / "work" / name, id=name)))
    for number, runner in enumerate(settings.runners):
        specs.append(ChildSpec(f"runner-{number}", "runner", _with_defaults(runner, id=f"runner-{number}")))
    if settings.grader is not None:
        cache = where / "work" / "judge_answers.sqlite"
        specs.append(ChildSpec("grader", "grader", _with_defaults(settings.grader, id="grader", cache=cache)))
    for name, learner in zip(learner_names(settings), settings.all_learners, strict=True):
        checkpoints = where / "checkpoints"
        placed = _with_defaults(
            follow_nodes(learner, settings.inference),
            checkpoint_dir=checkpoints / learner.model if settings.learners else checkpoints,
            run=settings.name,
            task_model=settings.main_model,
            role_models=settings.role_models,
        )
        specs.append(ChildSpec(name, "learner", placed))
    if settings.auditor is not None:
        as_nodes = next(
            (
                {"engine_dtype": node.engine_dtype, "kv_cache_on_swap": node.kv_cache_on_swap, "frozen": node.frozen}
                for node in settings.inference
                if settings.auditor.model in node.models
            ),
            {},
        )
        audited = _with_defaults(settings.auditor, work_dir=where / "auditor", id="auditor", **as_nodes)
        specs.append(ChildSpec("auditor", "auditor", audited))
    return specs


def complete_learner_settings(settings: RunSettings, where: Path) -> dict[str, LearnerSettings]:
    """Return the settings of the learners as `child_specs` completes them, by process name."""
    specs = child_specs(settings, where)
    return {spec.name: spec.settings for spec in specs if isinstance(spec.settings, LearnerSettings)}


def learner_names(settings: RunSettings) -> list[str]:
    """Return the names of the learners' processes, in the order of the learners."""
    return [f"learner-{learner.model}" if settings.learners else "learner" for learner in settings.all_learners]


def _with_defaults(settings: S, **defaults: object) -> S:
    fields_set = settings.model_fields_set
    return settings.model_copy(update={name: value for name, value in defaults.items() if name not in fields_set})
