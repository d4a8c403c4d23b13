"""Connecting: addresses are checked, `tls://` is never plain, and rotated keys are read again or end the role."""

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvloop

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer, find_server, free_port, nats_server
from lightningbus.bus.errors import BusError, CredentialsError
from lightningbus.bus.security.auth_refusals import AuthRefusals
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.users import create_users
from lightningbus.common.aio import cancel_and_wait
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.commands import environment
from tests.pausing import paused
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

LIGHTNINGBUS = [sys.executable, "-P", "-m", "lightningbus"]


def replace_users(server: NatsServer, users: Path, fresh: Path) -> None:
    """Give a running server the users of another directory, as an operator who rotates keys does."""
    shutil.copy(fresh / "users.conf", users / "users.conf")
    if (fresh / "server").is_dir():
        shutil.copytree(fresh / "server", users / "server", dirs_exist_ok=True)
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)


async def test_tls_address_of_a_plaintext_server_is_refused_and_nothing_is_published(tmp_path: Path) -> None:
    async with nats_server(tmp_path) as server, Bus.connect(server.url) as plain:
        await plain.provision()
        with pytest.raises(CredentialsError, match="speaks no TLS"):
            async with Bus.connect(server.url.replace("nats://", "tls://"), wait=HANG_SECONDS) as bus:
                await TaskPublisher(bus).publish_task(Task(id="t", run_id="r", agent="a", input=1))
        assert (await plain.js.stream_info("TASKS")).state.messages == 0


async def test_tls_address_of_one_server_in_a_list_holds_for_all(tmp_path: Path) -> None:
    async with nats_server(tmp_path) as server:
        with pytest.raises(CredentialsError, match="speaks no TLS"):
            async with Bus.connect(f"{server.url},tls://127.0.0.1:1", wait=HANG_SECONDS):
                pass


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("", "is empty"),
        ("nats://", "names no host"),
        ("nats://:4222", "names no host"),
        ("http://127.0.0.1:4222", "starts with http://, not nats:// or tls://"),
        ("nats://127.0.0.1:99999", "a port is a number from 1 to 65535"),
        ("nats://127.0.0.1:0", "a port is a number from 1 to 65535"),
        ("nats://127.0.0.1:x", "a port is a number from 1 to 65535"),
        ("nats://127.0. 0.1:4222", "has a space in it"),
        ("nats://127.0.0.1:4222,", "has an empty member"),
        ("nats://127.0.0.1:4222,,nats://127.0.0.2:4222", "has an empty member"),
        ("nats://127.0.0.1:4222/path", "has more than host and port"),
        ("nats://[::1:4222", "is no address"),
        ("nats://lb:hunter/22@127.0.0.1:4222", "percent-encode them, such as"),
        ("nats://lb:hunter#22@127.0.0.1:4222", "percent-encode them, such as"),
        ("nats://lb:hunter?22@127.0.0.1:4222", "percent-encode them, such as"),
        ("nats://lb:hunter,22@127.0.0.1:4222", "percent-encode them, such as"),
        ("lb:p@ss/w:rd#1?%41@127.0.0.1:4222", "percent-encode them, such as"),
        ("nats://lb:hunter22@127.0.0.1:4222,nats://127.0.0.2:99999", "a port is a number from 1 to 65535"),
    ],
)
async def test_a_malformed_address_is_refused_at_once(address: str, sentence: str) -> None:
    with pytest.raises(BusError, match=sentence) as raised:
        async with Bus.connect(address, wait=60):
            pass
    assert "hunter" not in str(raised.value)


PASSWORDS = ["p@ss/w:rd#1?%41", "100%", "a,b c", "ü[]", "plain"]


@asynccontextmanager
async def asking_for(authorization: str, tmp_path: Path) -> AsyncIterator[str]:
    """A server that asks every client for a user or token; yields host and port."""
    port = free_port()
    (tmp_path / "server.conf").write_text(f"host: 127.0.0.1\nport: {port}\nauthorization {{{authorization}}}\n")
    server = await asyncio.create_subprocess_exec(find_server(), "-c", str(tmp_path / "server.conf"), stderr=PIPE)
    assert server.stderr is not None
    try:
        while b"Server is ready" not in (line := await server.stderr.readline()):
            assert line, "it ended"
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        await server.communicate()


@pytest.mark.parametrize("password", PASSWORDS)
async def test_a_password_in_the_address_is_percent_encoded(tmp_path: Path, password: str) -> None:
    async with asking_for(f"user: lb, password: {json.dumps(password, ensure_ascii=False)}", tmp_path) as place:
        async with Bus.connect(f"nats://lb:{quote(password, safe='')}@{place}", wait=HANG_SECONDS) as bus:
            assert bus.nc.is_connected
        for wrong in ("lb:wrong", "other:wrong", "token"):
            with pytest.raises(CredentialsError, match="it has no user of the name and password") as raised:
                async with Bus.connect(f"nats://{wrong}@{place}", wait=HANG_SECONDS):
                    pass
            assert "--credentials" not in str(raised.value) and "wrong" not in str(raised.value)


async def test_a_token_in_the_address_is_percent_encoded(tmp_path: Path) -> None:
    async with (
        asking_for('token: "t@ken/1"', tmp_path) as place,
        Bus.connect(f"nats://{quote('t@ken/1', safe='')}@{place}", wait=HANG_SECONDS) as bus,
    ):
        assert bus.nc.is_connected


@pytest.mark.parametrize("address", ["http://x", "nats://user:hunter22@127.0.0.1:99999"])
def test_a_role_with_a_malformed_address_ends_with_code_2_and_no_password(tmp_path: Path, address: str) -> None:
    command = [*LIGHTNINGBUS, "store", "--bus", address, "--data-dir", str(tmp_path / "store"), "--http-port", "0"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr and "hunter22" not in ended.stderr and "bus address" in ended.stderr


async def test_a_server_that_hangs_up_as_the_wait_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """nats-py forgets a cancellation that arrives together with the end of a connection, and would connect for ever."""
    monkeypatch.setattr("lightningbus.bus.connection.CONNECT_SECONDS", 1.0)
    loop, accepted = asyncio.get_running_loop(), asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clients: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener is closed at the end
                while True:
                    clients.append(listener.accept()[0])
                    loop.call_soon_threadsafe(accepted.set)

        def hang_up_and_block_until(deadline: float) -> None:
            for client in clients:
                client.close()
            time.sleep(max(0.0, deadline - loop.time()))  # the loop finds both at once: the end, and the timeout

        async def connect() -> None:
            async with Bus.connect(f"nats://127.0.0.1:{listener.getsockname()[1]}", wait=1.0):
                pass

        threading.Thread(target=accept, daemon=True).start()
        deadline = loop.time() + 1.0
        connecting = asyncio.create_task(connect())
        await accepted.wait()
        hang_up_and_block_until(deadline + 0.1)
        done, _ = await asyncio.wait([connecting], timeout=HANG_SECONDS)
        await cancel_and_wait(connecting)
        listener.shutdown(socket.SHUT_RDWR)
    assert done, "it still connects long after its wait has ended"
    assert isinstance(connecting.exception(), BusError)


async def test_a_server_that_is_there_and_busy_is_waited_for_longer_than_one_that_is_not(tmp_path: Path) -> None:
    """Whoever asks something does not wait for a bus that is about to start; a connection that was taken is another."""
    async with nats_server(tmp_path) as server:
        assert server.process is not None
        with paused(server.process.pid):  # its socket takes connections
            connecting = asyncio.create_task(connect(server.url))
            done, _ = await asyncio.wait([connecting], timeout=0.9)
            assert not done
        await connecting
        await server.stop()
        with pytest.raises(BusError, match="no NATS server answers"):
            await asyncio.wait_for(connect(server.url), HANG_SECONDS)


async def connect(url: str) -> None:
    """Connect as a command that waits for a third of a second."""
    async with Bus.connect(url, wait=0.3):
        pass


async def test_rotated_keys_are_read_again_at_a_reconnect(tmp_path: Path) -> None:
    """The server takes new users; the role's new seed lies in its file, and it goes on without a restart."""
    users, fresh = tmp_path / "users", tmp_path / "fresh"
    assert list(create_users(users, tls=False)) and list(create_users(fresh, tls=False))
    async with nats_server(tmp_path / "nats", users=users) as server:
        access = Credentials.read(users, "admin")
        async with Bus.connect(server.url, credentials=access) as bus, asyncio.timeout(HANG_SECONDS):
            await bus.provision()
            shutil.copy(fresh / "admin" / "nkey", users / "admin" / "nkey")
            replace_users(server, users, fresh)
            await bus.reconnected.wait()
            assert (await bus.js.stream_info("TASKS")).state.messages == 0
            assert not bus.closed.is_set()


@pytest.mark.parametrize(
    ("tls", "reason"), [(False, "it has no user of this key"), (True, "its certificate is not to be trusted")]
)
async def test_old_keys_end_the_connection_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool, reason: str
) -> None:
    """Refused for as long as is allowed: the connection fails, says why and is closed, rather than try for ever."""
    monkeypatch.setattr("lightningbus.bus.connection.AUTH_RETRY_SECONDS", 1.0)
    users, fresh = tmp_path / "users", tmp_path / "fresh"
    assert list(create_users(users, tls=tls)) and list(create_users(fresh, tls=tls))
    async with (
        asyncio.timeout(HANG_SECONDS),
        nats_server(tmp_path / "nats", users=users) as server,
        Bus.connect(server.url, credentials=Credentials.read(users, "admin")) as bus,
    ):
        replace_users(server, users, fresh)
        await bus.closed.wait()
        assert isinstance(bus.failure, CredentialsError)
        assert reason in str(bus.failure)


@pytest.mark.long
async def test_a_role_with_old_keys_ends_with_code_2_and_the_reason(tmp_path: Path) -> None:
    """As its supervisor sees it, after the bound that users meet."""
    users, fresh = tmp_path / "users", tmp_path / "fresh"
    assert list(create_users(users, tls=False)) and list(create_users(fresh, tls=False))
    async with nats_server(tmp_path / "nats", users=users) as server:
        async with Bus.connect(server.url, credentials=Credentials.read(users, "admin")) as admin:
            await admin.provision()
            arguments = [
                "--credentials",
                str(users),
                "store",
                "--bus",
                server.url,
                "--data-dir",
                str(tmp_path / "store"),
            ]
            async with admin.fleet("store") as fleet:
                role = await asyncio.create_subprocess_exec(
                    *LIGHTNINGBUS, *arguments, "--http-port", "0", env=environment(), stderr=asyncio.subprocess.PIPE
                )
                async with asyncio.timeout(HANG_SECONDS):
                    while not fleet.members():
                        await fleet.wait_for_change()
        replace_users(server, users, fresh)
        assert role.stderr is not None
        async with asyncio.timeout(HANG_SECONDS):
            words = (await role.stderr.read()).decode()
            assert await role.wait() == 2, words
        assert "it has no user of this key" in words.splitlines()[-1]


def test_a_lost_connection_with_bytes_to_send_is_closed_without_an_error(tmp_path: Path) -> None:
    """On uvloop, as every role runs: there a write to a closed transport raises RuntimeError."""

    async def lose_and_close() -> bool:
        async with nats_server(tmp_path) as server:
            async with Bus.connect(server.url) as bus:
                transport: Any = bus.nc._transport
                transport._io_writer.transport.abort()
                bus.nc._pending, bus.nc._pending_data_size = [b"PING\r\n"], 6
                await bus.nc.close()
            return bus.nc.is_closed

    assert uvloop.run(lose_and_close())


def test_refusals_end_a_connection_only_when_they_go_on() -> None:
    """Pure: a refusal now and then is forgotten, refusals without a pause add up, a connection begins anew."""
    refusals = AuthRefusals(bound=60, pause=15)
    assert [refusals.record(second) for second in range(0, 200, 20)] == [False] * 10
    assert [refusals.record(second) for second in range(200, 270, 10)] == [False] * 6 + [True]
    refusals.clear()
    assert not refusals.record(271)
