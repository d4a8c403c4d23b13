"""All roles of a run under one supervisor, from a run file."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from bus.client import Bus
from bus.embedded.nats_server import free_port, nats_server
from bus.fleet.heartbeats import Fleet, default_instance_id
from bus.security.credentials import FILE, Credentials
from bus.security.permissions import PERMISSIONS
from bus.security.secrets import CLUSTER_KEY, CONF, is_loopback, new_key, write_secret
from bus.security.signing import make_keys
from bus.security.users import create_users
from bus.streams import ConsumerSpec, runner_consumers
from common.aio import cancel_and_wait, run_unless
from lightningbus.run.attendance import AttendanceWatch
from lightningbus.run.discovery import ACCESS_VARIABLE, KEY_VARIABLE, access_directory, cluster_key_of
from lightningbus.run.live_view import View, console
from lightningbus.run.role_process import UserError, on_stop_signals
from lightningbus.run.run_directory import Endpoints, RunDirectory
from lightningbus.run.settings import BusSettings, RunSettings
from lightningbus.run.supervisor import Child, Supervisor
from runners.settings import RunnerSettings
from schemas.fleet import Heartbeat

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")

ACCESS = "access"
"""Where a run keeps the users, or without any the signing keys alone, of a bus of its own."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Where they lie: the directory with every role's access, and the file with the cluster key."""

    access: Path | None = None
    cluster_key: Path | None = None
    users: Path | None = None
    """That directory where it makes the server ask who is there; None: it holds signing keys only."""

    @classmethod
    def of(cls, directory: RunDirectory, settings: BusSettings) -> "Keys":
        """As the settings or the environment say; what a bus of our own lacks is made here.

        That is the cluster key, the keys that weight versions and decisions are signed by, and users, unless the bus
        is to be ``open``, or listens beyond loopback: there somebody is to choose them.
        """
        users = access = settings.access or access_directory()
        if access is None and settings.url is None and is_loopback(settings.host) and not settings.open:
            users = access = directory.path / ACCESS
            if not (access / CONF).exists():
                shutil.rmtree(access, ignore_errors=True)  # of a run that ended while it made them
                list(create_users(access, tls=False))
        key = cluster_key_of("inference", access)
        if access is None and settings.url is None:
            access = directory.path / ACCESS
            if not access.exists():
                make_keys(access, PERMISSIONS, FILE)
        if key is None and settings.url is None:
            key = directory.path / CLUSTER_KEY
            if not key.exists():
                write_secret(key, new_key() + "\n")
        return cls(access and access.resolve(), key and key.resolve(), users and users.resolve())

    def environment(self) -> dict[str, str]:
        """What children are told of them."""
        told = {ACCESS_VARIABLE: self.access, KEY_VARIABLE: self.cluster_key}
        return {name: str(path) for name, path in told.items() if path is not None}


@dataclass(frozen=True, slots=True)
class Stack:
    """A bus with its supervisor: what `up` and the demo stand on."""

    directory: RunDirectory
    bus: Bus
    url: str
    fleet: Fleet
    supervisor: Supervisor
    view: View
    keys: Keys

    async def member(self, fits: Callable[[Heartbeat], bool], what: str, seconds: float) -> Heartbeat:
        """Wait for a process that fits; raises `UserError` when a child fails or nobody comes in time."""

        async def found() -> Heartbeat:
            while True:
                for beat in self.fleet.members():
                    if fits(beat):
                        return beat
                await self.fleet.wait_for_change()

        try:
            async with asyncio.timeout(seconds):
                return await self.unless_failed(found())
        except TimeoutError:
            raise UserError(f"no {what} within {seconds:g} s: see {self.directory.path / 'logs'}") from None

    async def unless_failed(self, work: Awaitable[T]) -> T:
        """The result of ``work``; raises `UserError` as soon as a child fails for good."""
        return await run_unless(self.supervisor.any_failure(), work)

    def access(self, role: str) -> Credentials | None:
        """What a role is let in by, and signs by."""
        return Credentials.read(self.keys.access, role) if self.keys.access is not None else None

    def announce(self, sql: str = "") -> None:
        """Say in the run's directory where the servers are, so that other terminals find them."""
        roles, access, key = self.supervisor.pids(), str(self.keys.access or ""), str(self.keys.cluster_key or "")
        self.directory.write_endpoints(Endpoints(os.getpid(), self.url, sql, access, key, roles))


@asynccontextmanager
async def stack(directory: RunDirectory, settings: BusSettings, title: str) -> AsyncIterator[Stack]:
    """Bus, supervisor and view while the block runs; children are stopped in order at its end."""
    async with AsyncExitStack() as exits:
        keys = Keys.of(directory, settings)
        url, server = settings.url, None
        if url is None:
            where = directory.path / "bus"
            server = await exits.enter_async_context(
                nats_server(
                    where, settings.host, settings.port, settings.sync, keys.users, settings.open,
                    settings.streams.more_mib,
                )
            )  # fmt: skip
            url = server.url
        access = Credentials.read(keys.access, "admin") if keys.access is not None else None
        bus = await exits.enter_async_context(Bus.connect(url, name="supervisor", access=access))
        await bus.provision(sizes=settings.streams)
        fleet = await exits.enter_async_context(bus.fleet("*"))

        durables: list[ConsumerSpec] = []

        async def prepare(child: Child) -> None:
            if isinstance(child.settings, RunnerSettings):  # who may take from a durable may not make it
                for consumer in runner_consumers(child.settings.name, child.settings.ack_wait):
                    await bus.ensure_consumer(consumer)
                    durables.append(consumer)

        supervisor = Supervisor(directory, url, keys.environment(), prepare)
        supervisor.also(bus.raise_failure())
        if server is not None:
            supervisor.also(server.supervise())
        attendance = AttendanceWatch(bus, fleet, supervisor)
        await exits.enter_async_context(
            bus.heartbeat("supervisor", default_instance_id(directory.path.name), attendance.describe)
        )
        watching = asyncio.create_task(attendance.run())
        exits.push_async_callback(cancel_and_wait, watching)
        supervisor.also(bus.keep_provisioned(settings.streams, durables))
        exits.push_async_callback(supervisor.stop_all)
        view = await exits.enter_async_context(View(fleet, title, console()).showing())
        made = Stack(directory, bus, url, fleet, supervisor, view, keys)
        made.announce()
        yield made


async def up(settings: RunSettings) -> None:
    """Run everything a run file names until Ctrl-C, or until the learner has made its last step."""
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    title = f"lightningbus up · {settings.name}"
    with RunDirectory(settings.runs / settings.name).locked() as directory:
        async with stack(directory, settings.bus, title) as made:
            await _run(made, settings, stop)


async def _run(made: Stack, settings: RunSettings, stop: asyncio.Event) -> None:
    for child in children(settings, made.directory.path):
        await made.supervisor.start(child)
    if settings.store is not None:
        store = await made.member(lambda beat: beat.role == "store", "store", 60)
        made.announce(store.address)
    made.view.say("running; Ctrl-C stops")
    if settings.learner is not None:
        finished = asyncio.create_task(made.supervisor.finished("learner"))
        finished.add_done_callback(lambda _: stop.set())
    await made.unless_failed(stop.wait())
    made.view.say("stopping")


def children(settings: RunSettings, where: Path) -> list[Child]:
    """The processes of a run, in the order they start; what is left at its default lies in the run's directory."""
    made: list[Child] = []
    if settings.store is not None:
        placed_store = _placed(settings.store, data_dir=where / "store")
        if placed_store.http_port == 0:  # chosen here, so that a store that is started again is found where it was
            placed_store = placed_store.model_copy(update={"http_port": free_port(placed_store.host)})
        made.append(Child("store", "store", placed_store))
    for number, node in enumerate(settings.inference):
        name = f"inference-{number}"
        made.append(Child(name, "inference", _placed(node, work=where / "work" / name, id=name)))
    for number, runner in enumerate(settings.runners):
        made.append(Child(f"runner-{number}", "runner", _placed(runner, id=f"runner-{number}")))
    if settings.learner is not None:
        placed = _placed(settings.learner, checkpoints=where / "checkpoints", run=settings.name)
        made.append(Child("learner", "learner", placed))
    return made


def _placed(settings: S, **defaults: object) -> S:
    given = settings.model_fields_set
    return settings.model_copy(update={name: value for name, value in defaults.items() if name not in given})
