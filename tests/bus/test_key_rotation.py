"""Certificates belong to their users, and keys and authorities are rotated while a run goes on."""

import asyncio
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer, nats_server
from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security import certificate_expiry
from lightningbus.bus.security.certificates import CertificateAuthority
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.identities import identity_of
from lightningbus.bus.security.key_rotation import begin_rotation, finish_rotation
from lightningbus.bus.security.users import create_users
from lightningbus.cli.commands.roles.bus import report_refusal
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.observability import metric_registry
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration


def reload(server: NatsServer) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)


async def let_in(url: str, access: Credentials) -> None:
    """Raises `CredentialsError` unless the server lets us in."""
    async with Bus.connect(url, credentials=access, wait=HANG_SECONDS):
        pass


async def reloaded(url: str, access: Credentials, refused: bool) -> None:
    """The server has read its configuration: an access is refused, or let in, which before was not so."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            try:
                await let_in(url, access)
                if not refused:
                    return
            except CredentialsError:
                if refused:
                    return


async def test_a_certificate_is_let_in_with_its_own_users_password_only(tmp_path: Path) -> None:
    assert list(create_users(tmp_path / "users", tls=True))
    runner, node = (Credentials.read(tmp_path / "users", role) for role in ("runner", "inference"))
    async with nats_server(tmp_path / "nats", users=tmp_path / "users") as server:
        await let_in(server.url, runner)
        for wrong in (
            replace(runner, password=node.password),
            replace(runner, password=None),
            replace(runner, cert=node.cert, key=node.key),
        ):
            with pytest.raises(CredentialsError, match="rejects unknown users"):
                await let_in(server.url, wrong)


async def test_an_nkey_of_another_user_opens_nothing_with_a_runners_certificate(tmp_path: Path) -> None:
    """With TLS no role has an nkey at the server; one of a bus without TLS, or of another, is nobody's."""
    assert list(create_users(tmp_path / "users", tls=True)) and list(create_users(tmp_path / "others", tls=False))
    runner, node = Credentials.read(tmp_path / "users", "runner"), Credentials.read(tmp_path / "others", "inference")
    async with nats_server(tmp_path / "nats", users=tmp_path / "users") as server:
        with pytest.raises(CredentialsError, match="rejects unknown users"):
            await let_in(server.url, replace(runner, password=None, nkey=node.nkey))


async def test_a_server_that_maps_no_certificates_lets_no_bare_name_in(tmp_path: Path) -> None:
    """An operator's own `tls` block with `verify` alone: the name in a certificate is no secret, the password is."""
    users = tmp_path / "users"
    assert list(create_users(users, tls=True))
    conf = (users / "users.conf").read_text()
    (users / "users.conf").write_text(conf.replace("verify_and_map: true", "verify: true"))
    (admin,) = re.findall(r'"user": "(CN=lightningbus admin [0-9a-f]+)"', conf)
    runner = Credentials.read(users, "runner")
    async with nats_server(tmp_path / "nats", users=users) as server:
        bare = replace(runner, password=None)
        with pytest.raises(CredentialsError, match="rejects unknown users"):
            await let_in(server.url.replace("nats://", f"nats://{quote(admin)}:@"), bare)


@pytest.mark.parametrize("tls", [False, True], ids=["keys", "keys and authorities"])
async def test_rotation_cuts_nobody_off(tmp_path: Path, tls: bool) -> None:
    """A client publishes throughout; the last step alone makes it connect again, with the new keys."""
    users = tmp_path / "users"
    assert list(create_users(users, tls=tls))
    async with nats_server(tmp_path / "nats", users=users) as server:
        async with Bus.connect(server.url, credentials=Credentials.read(users, "admin")) as admin:
            await admin.provision()
            old = tmp_path / "old"
            old.mkdir()
            for file in (users / "runner").iterdir():
                (old / file.name).write_bytes(file.read_bytes())
            async with Bus.connect(server.url, credentials=Credentials.read(users, "client")) as client:
                published = 0

                async def publish() -> None:
                    nonlocal published
                    while True:
                        task = Task(id=str(published), run_id="r", agent="a", input=1)
                        await TaskPublisher(client).publish_task(task)
                        published += 1

                publishing = asyncio.create_task(publish())
                assert len(list(begin_rotation(users))) > 1
                reload(server)
                await reloaded(server.url, Credentials.read(users, "runner"), refused=False)
                await let_in(server.url, Credentials.read(old, "runner"))
                assert client.nc.stats["reconnects"] == 0
                with pytest.raises(CredentialsError, match="under way: reload each server"):
                    list(begin_rotation(users))
                assert list(finish_rotation(users))
                reload(server)
                await reloaded(server.url, Credentials.read(old, "runner"), refused=True)
                await let_in(server.url, Credentials.read(users, "runner"))
                async with asyncio.timeout(HANG_SECONDS):
                    await client.reconnected.wait()
                    reached = published
                    while published < reached + 10:
                        await asyncio.sleep(0.01)
                publishing.cancel()
                assert not client.closed.is_set() and not publishing.done()
                assert (await admin.js.stream_info("TASKS")).state.messages >= published
        with pytest.raises(CredentialsError, match="no rotation"):
            list(finish_rotation(users))


def start_bus(tmp_path: Path, *options: str, **more: Any) -> "tuple[subprocess.Popen[str], str]":
    """The process of ``lightningbus bus`` and its address, once it serves."""
    line = [sys.executable, "-P", "-m", "lightningbus", *options, "bus", "--port", "0", "--dir", "bus"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, **more)
    assert process.stdout is not None
    return process, process.stdout.readline().removeprefix("bus: ").strip()


async def test_a_bus_that_is_hung_up_reads_new_keys(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert list(create_users(users, tls=True))
    old = tmp_path / "old"
    shutil.copytree(users / "runner", old)
    process, url = await asyncio.to_thread(start_bus, tmp_path, "--credentials", "users")
    try:
        assert list(begin_rotation(users))
        assert list(finish_rotation(users))
        process.send_signal(signal.SIGHUP)
        await reloaded(url, Credentials.read(old, "runner"), refused=True)
        await let_in(url, Credentials.read(users, "runner"))
    finally:
        process.terminate()
        _, errors = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
    assert errors.count("reads its configuration, users and certificates again") == 1


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_closes_stops_a_bus_unless_nohup(tmp_path: Path, nohup: bool) -> None:
    master, slave = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)  # whatever these tests inherited

    process, _ = start_bus(
        tmp_path, start_new_session=True, preexec_fn=take_terminal, pass_fds=[slave], stdin=subprocess.DEVNULL
    )
    os.close(slave)
    os.close(master)
    assert process.stderr is not None
    if nohup:
        while "reads its configuration" not in (line := process.stderr.readline()):
            assert line
        process.terminate()
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0


async def test_a_bus_whose_admin_has_old_keys_says_so_and_lets_it_in_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lightningbus.bus.connection.AUTH_RETRY_SECONDS", 0.1)
    users, mine = tmp_path / "users", tmp_path / "mine"
    assert list(create_users(users, tls=True))
    shutil.copytree(users / "admin", mine / "admin")
    async with (
        asyncio.timeout(HANG_SECONDS),
        nats_server(tmp_path / "nats", users=users) as server,
        Bus.connect(server.url, credentials=Credentials.read(mine, "admin")) as admin,
    ):
        reporting = asyncio.create_task(report_refusal(admin, mine))
        assert list(begin_rotation(users))
        assert list(finish_rotation(users))
        server.reload()
        while not (errors := [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]):
            await asyncio.sleep(0.01)
        assert len(errors) == 1 and f"copy {mine}/admin of the new keys here" in errors[0]
        assert "its certificate is not to be trusted" in errors[0]
        shutil.copytree(users / "admin", mine / "admin", dirs_exist_ok=True)
        await admin.reconnected.wait()
        await admin.provision()
        await cancel_and_wait(reporting)


@pytest.mark.parametrize("tls", [False, True], ids=["keys", "keys and authorities"])
async def test_a_role_that_an_older_release_did_not_know_is_let_in(tmp_path: Path, tls: bool) -> None:
    users = tmp_path / "users"
    assert list(create_users(users, tls=tls))
    shutil.rmtree(users / "auditor")
    for file in users.glob("*/signers.json"):
        file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "auditor"}))
    before = json.loads((users / "admin" / "signers.json").read_text())
    assert f"{users / 'auditor'}: what auditor is let in by" in list(begin_rotation(users))
    async with nats_server(tmp_path / "nats", users=users) as server:
        await let_in(server.url, Credentials.read(users, "auditor"))
        assert list(finish_rotation(users))
        reload(server)
        await reloaded(server.url, Credentials.read(users, "auditor"), refused=False)
    after = json.loads((users / "inference" / "signers.json").read_text())
    assert len(after.pop("auditor")) == 1 and after == before
    assert (users / "auditor" / "signing.seed").exists()


@pytest.mark.parametrize("tls", [False, True], ids=["keys", "keys and authorities"])
async def test_each_learner_of_several_models_gets_new_keys(tmp_path: Path, tls: bool) -> None:
    users = tmp_path / "users"
    assert list(create_users(users, tls=tls, policies=("writer", "checker")))
    old = tmp_path / "old"
    shutil.copytree(users / "learner-checker", old)
    assert f"{users / 'learner-checker'}: new keys" in list(begin_rotation(users))
    async with nats_server(tmp_path / "nats", users=users) as server:
        for access in (Credentials.read(users, "learner-checker"), Credentials.read(old, "learner-checker")):
            await let_in(server.url, access)
        assert list(finish_rotation(users))
        reload(server)
        await reloaded(server.url, Credentials.read(old, "learner-checker"), refused=True)
        for model in ("writer", "checker"):
            await let_in(server.url, Credentials.read_learner(users, model))


@pytest.mark.parametrize("tls", [False, True], ids=["keys", "keys and authorities"])
async def test_the_users_of_a_far_site_get_new_keys(tmp_path: Path, tls: bool) -> None:
    cluster, site = tmp_path / "cluster", tmp_path / "site"
    assert list(create_users(cluster, tls=tls))
    assert list(create_users(site, tls=tls, site=True, signing=cluster / "inference"))
    before = identity_of(site / "runner")
    assert list(begin_rotation(site, site=True))
    after, conf = identity_of(site / "runner"), (site / "users.conf").read_text()
    assert before != after and all(value in conf for value in (*before.values(), *after.values()))
    assert list(finish_rotation(site, site=True))
    conf = (site / "users.conf").read_text()
    assert not any(value in conf for value in before.values()) and all(value in conf for value in after.values())


async def test_the_end_of_each_certificate_is_a_metric_and_a_warning_when_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the role's own, its authority's and the server's; new ones are shown after a reconnect."""
    users = tmp_path / "users"
    monkeypatch.setattr("lightningbus.bus.security.certificates.VALID_DAYS", 20)
    assert list(create_users(users, tls=True))
    async with (
        asyncio.timeout(HANG_SECONDS),
        nats_server(tmp_path / "nats", users=users) as server,
        Bus.connect(server.url, credentials=Credentials.read(users, "runner")) as bus,
    ):
        names = ("own", "authority", "server")
        while [days_left(name) for name in names] != [20, 20, 20]:
            await asyncio.sleep(0.01)
        warned = " ".join(caplog.messages)
        assert all(f"the {name} certificate of the bus ends on" in warned for name in names)
        monkeypatch.setattr("lightningbus.bus.security.certificates.VALID_DAYS", 400)
        assert list(begin_rotation(users)) and list(finish_rotation(users))
        reload(server)
        await bus.reconnected.wait()
        while [days_left(name) for name in names] != [400, 400, 400]:
            await asyncio.sleep(0.01)


def days_left(certificate: str) -> int:
    """As a role's metrics have it."""
    lines = metric_registry.render_exposition("runner").decode().splitlines()
    name = f'lightningbus_certificate_expires_at_seconds{{certificate="{certificate}"}} '
    ends = [float(line.removeprefix(name)) for line in lines if line.startswith(name)]
    return round((ends[0] - time.time()) / 86400) if ends else 0


@pytest.mark.parametrize("days", [1, 20_000], ids=["of this half of the century", "of the next"])
def test_the_end_of_a_certificate_is_read_as_cryptography_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    monkeypatch.setattr("lightningbus.bus.security.certificates.VALID_DAYS", days)
    certificate = CertificateAuthority.create().certificate
    der = certificate.public_bytes(serialization.Encoding.DER)
    assert certificate_expiry.parse_not_after(der) == certificate.not_valid_after_utc.timestamp()
    (tmp_path / "cert.pem").write_text("no certificate")
    assert certificate_expiry.read_expiries(Credentials(cert=tmp_path / "cert.pem", ca=tmp_path / "none"), None) == {}
