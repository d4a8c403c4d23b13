"""A whole run on hosts of its own: every process started as a user would, on the host it belongs to.

Three servers, store, learner, two nodes, two runners, and this process on a host beside them, as whoever looks on.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import find_server
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.secrets import CONF, SERVER_DIR
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.runners.settings import RunnerSettings
from lightningbus.store.settings import StoreSettings
from tests.chaos.running_system import LEASE_SECONDS, RunningSystem, children, policy_children, store_settings
from tests.chaos.tap import Tap
from tests.commands import environment
from tests.hosts.network import Host, Network

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "hosts"
LIGHTNINGBUS = (sys.executable, "-P", "-m", "lightningbus")
BUSES, NODES, RUNNERS = 3, 2, 2
GATEWAY, SQL, HEALTH = 8000, 8123, 9464
CLIENTS, ROUTE, LEAVES = 4222, 6222, 7422
START_SECONDS = 120.0
USER = {"store": "store", "inference": "inference", "learner": "learner", "runner": "runner"}
"""The user of the bus that a role is."""


@dataclass
class Hosts(RunningSystem):
    """A running system whose processes can be reached by no other way than its network's."""

    network: Network = field(default_factory=Network)
    secrets: Path = Path()
    urls: str = ""

    def host(self, name: str) -> Host:
        """By name: ``bus-0``, ``store``, ``learner``, ``node-0``, ``runner-0``, …"""
        return self.network.hosts[name]

    async def rollouts_more(self, count: int, seconds: float = 90.0) -> None:
        """The run goes on: so many more rollouts end."""
        async with asyncio.timeout(seconds):
            await self.tap.rollouts(len(self.tap.ended) + count)

    def ended(self) -> list[str]:
        """Processes that are there no longer, with their last words."""
        gone = []
        for host in self.network.hosts.values():
            for name, process in host.processes.items():
                if process.returncode is not None and not (name == "learner" and process.returncode == 0):
                    log = (self.directory / "hosts" / host.name / f"{name}.log").read_text(errors="replace")
                    gone.append(f"{name} on {host.name} ended with {process.returncode}: {log[-800:]}")
        return gone


async def command(*words: object, at: Path) -> str:
    """A command to its end, on the host this process is on; what it said."""
    process = await asyncio.create_subprocess_exec(
        *LIGHTNINGBUS,
        *map(str, words),
        cwd=at,
        env=command_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()[-2000:]
    return out.decode()


def command_environment(**more: str) -> dict[str, str]:
    """The environment of a command: where our code is, and nothing else of ours."""
    return {**environment(), "PYTHONPATH": str(ROOT), **more}


def server_file(place: Path, template: str, secrets: Path, hubs: Sequence[Host]) -> Path:
    """A server's own directory with what it is given: its configuration, and of the secrets what is a server's."""
    place.mkdir()
    text = (DEPLOY / template).read_text()
    for number, hub in enumerate(hubs):
        text = text.replace(f"bus{number + 1}.example", hub.address)
    (place / "nats.conf").write_text(text)
    kept = place / ("secrets" if template == "nats.conf" else "site")
    shutil.copytree(secrets / SERVER_DIR, kept / SERVER_DIR)
    shutil.copy(secrets / CONF, kept)
    return place


async def serve(host: Host, place: Path) -> None:
    """A nats-server on a host."""
    await host.start(
        "nats", find_server(), "-c", "nats.conf", at=place, environment=command_environment(SERVER_NAME=host.name)
    )


async def role(host: Host, place: Path, child: ChildSpec, secrets: Path, urls: str) -> asyncio.subprocess.Process:
    """A role on a host, which is given the keys of that role and no others."""
    place.mkdir()
    user = USER[child.role]
    shutil.copytree(secrets / user, place / "access")
    (place / "settings.json").write_text(json.dumps(child.settings.model_dump(mode="json")))
    words = [
        "--credentials",
        "access",
        child.role,
        "--bus",
        urls,
        "--settings",
        "settings.json",
        "--health-address",
        HEALTH,
    ]
    return await host.start(child.role, *LIGHTNINGBUS, *words, at=place, environment=command_environment())


@asynccontextmanager
async def bus_as(secrets: Path, user: str, urls: str) -> AsyncIterator[Bus]:
    """A connection of a user, from where this process is."""
    async with Bus.connect(urls, name=user, wait=30, credentials=Credentials.read(secrets, user)) as bus:
        yield bus


@asynccontextmanager
async def cluster(network: Network, directory: Path, count: int = BUSES) -> AsyncIterator[tuple[Path, str, Host]]:
    """Users made, servers started, streams on all of them; the secrets, the servers' addresses, and our own host."""
    local = network.host("operator")
    buses = [network.host(f"bus-{number}") for number in range(count)]
    with local.inside():
        names = [word for host in buses for word in ("--host", host.address)]
        await command("bus", "create-users", "--out", "secrets", "--tls", *names, at=directory)
        secrets = directory / "secrets"
        (directory / "hosts").mkdir()
        for host in buses:
            await serve(host, server_file(directory / "hosts" / host.name, "nats.conf", secrets, buses))
        urls = ",".join(f"nats://{host.address}:{CLIENTS}" for host in buses)
        words = ["--replicas", count, "--ack-wait", LEASE_SECONDS]
        await command("--credentials", "secrets", "provision", "--bus", urls, *words, at=directory)
        yield secrets, urls, local


@asynccontextmanager
async def hosts(directory: Path, *, steps: int, token_seconds: float = 0.05) -> AsyncIterator[Hosts]:
    """Everything started and working, each on a host of its own; gone at the end. ``directory`` is `prepare`'s."""
    async with AsyncExitStack() as exits:
        network = await exits.enter_async_context(Network())
        secrets, urls, _ = await exits.enter_async_context(cluster(network, directory))
        bus = await exits.enter_async_context(bus_as(secrets, "admin", urls))
        fleet = await exits.enter_async_context(bus.fleet("*"))
        tap = await exits.enter_async_context(Tap(bus).listening())
        policies = policy_children(directory, steps, NODES, token_seconds, {})
        roles = children(policies, RUNNERS, store_settings(directory))
        store = next(_placed(child, network.host("store")).settings for child in roles if child.role == "store")
        built = Hosts(directory, steps, bus, fleet, None, tap, store, [], network=network, secrets=secrets, urls=urls)
        for child in roles:
            name = child.name.replace("inference", "node")
            host = network.host(name)
            await role(host, directory / "hosts" / name, _placed(child, host), secrets, urls)
            if child.role == "learner":
                built.learners[child.name] = asyncio.create_task(_success(host.processes["learner"]))
            exits.push_async_callback(host.stop)  # while it can still say goodbye: the servers go last
        async with asyncio.timeout(START_SECONDS):
            while not all(built._works(name, 0.0) for name in _names()):
                assert not built.ended(), built.ended()
                await fleet.wait_for_change()
        yield built


def _names() -> list[str]:
    return ["store", *(f"inference-{n}" for n in range(NODES)), *(f"runner-{n}" for n in range(RUNNERS))]


def _placed(child: ChildSpec, host: Host) -> ChildSpec:
    """What the settings of a role say of the host it is on."""
    changes: Mapping[str, Any] = {}
    if isinstance(child.settings, InferenceSettings):
        advertise = f"http://{host.address}:{GATEWAY}"
        changes = {"host": "0.0.0.0", "port": GATEWAY, "advertise_url": advertise}
    if isinstance(child.settings, RunnerSettings):
        changes = {"drain_timeout_seconds": 1.0, "concurrency": 2}
    if isinstance(child.settings, StoreSettings):
        changes = {"http_port": SQL}
    return ChildSpec(child.name, child.role, child.settings.model_copy(update=changes))


async def _success(process: asyncio.subprocess.Process) -> None:
    code = await process.wait()
    assert code == 0, f"the learner ended with {code}"
