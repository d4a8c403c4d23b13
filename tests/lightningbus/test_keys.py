"""The keys of a run: where they lie, who finds them, and that nobody says them."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.secrets import read_key, write_secret
from lightningbus.bus.security.users import create_users
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import discover_bus
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas import subjects
from tests.bus.test_signing import manifest
from tests.commands import environment
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

AGENTS = Path(__file__).resolve().parents[1] / "agents"


@pytest.fixture(autouse=True)
def nothing_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in an empty directory, with none of our variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("BUS", "ACCESS", "INFERENCE_API_KEY_FILE"):
        monkeypatch.delenv(f"LIGHTNINGBUS_{name}", raising=False)


async def runs(stack: LocalStack) -> str:
    """Start a runner and wait until it takes tasks; its command line, environment and settings."""
    settings = RunnerSettings(entrypoint="plain:asks", working_dir=AGENTS, concurrency=1, id="one")
    await stack.supervisor.start(ChildSpec("runner-0", "runner", settings))
    await stack.wait_for_member(lambda beat: beat.role == "runner" and beat.state == "running", "runner", HANG_SECONDS)
    process = Path(f"/proc/{stack.supervisor.pids()['runner-0']}")
    reported = [process / "cmdline", process / "environ", stack.directory.path / "work" / "runner-0.json"]
    return "\n".join(path.read_text() for path in reported)


async def test_a_run_has_a_inference_api_key_that_only_files_hold(tmp_path: Path) -> None:
    """Made once, for its owner, found by other terminals, and said by its path alone."""
    directory = RunDirectory(Path("runs/one")).create()
    async with start_stack(directory, BusSettings(port=0), "test") as stack:
        access = directory.path.resolve() / "credentials"
        key = access / "runner" / "inference-api.key"
        assert key.stat().st_mode & 0o777 == 0o600
        for fields in (None, stack.url):
            actual = discover_bus(fields, "runner")
            assert (actual.url, actual.credentials, actual.inference_api_key) == (
                stack.url,
                Credentials.read(access, "runner"),
                key,
            )
        assert discover_bus("nats://elsewhere:4222", "runner").inference_api_key is None
        reported = await runs(stack)
        endpoints = (directory.path / "endpoints.json").read_text()
    first = read_key(key)
    assert str(access) in reported
    texts = [reported, endpoints, *(path.read_text(errors="replace") for path in directory.path.glob("logs/*"))]
    assert not any(first in text for text in texts)
    assert not (directory.path / "endpoints.json").exists(), "nobody is sent to a run that has ended"
    async with start_stack(directory, BusSettings(port=0), "test"):
        assert read_key(key) == first, "a run that goes on keeps its key: nodes elsewhere may have it"


async def test_a_run_without_users_signs_versions_and_decisions_by_keys_of_its_own(tmp_path: Path) -> None:
    """Made once; every role, and every other terminal, believes them and nobody else."""
    directory = RunDirectory(Path("runs/one")).create()
    for _ in range(2):
        async with start_stack(directory, BusSettings(port=0), "test") as stack:
            access = {
                role: discover_bus(None, role).credentials
                for role in ("learner", "inference", "store", "client", "admin")
            }
            keys = {role: at.build_signing() for role, at in access.items() if at is not None}
            assert {role for role, signing in keys.items() if signing.seed is not None} == {
                "learner",
                "inference",
                "admin",
            }
            assert len({signing.signers.read_text() for signing in keys.values() if signing.signers}) == 1
            assert stack.bus.signing == keys["admin"]
    assert (directory.path / "credentials").stat().st_mode & 0o077 == 0


async def test_a_run_with_users_gives_each_role_its_own(tmp_path: Path) -> None:
    """The server asks for users and TLS; a runner is let in as one and finds its key, and so does another terminal."""
    list(create_users(tmp_path / "secrets", tls=True))
    directory = RunDirectory(Path("runs/one")).create()
    async with start_stack(directory, BusSettings(port=0, credentials=Path("secrets")), "test") as stack:
        reported = await runs(stack)
        assert not (directory.path / "inference-api.key").exists()
        assert json.loads((directory.path / "endpoints.json").read_text())["credentials"] == str(tmp_path / "secrets")
        at = discover_bus(None, "client")
        assert at.credentials == Credentials.read(tmp_path / "secrets", "client")
        assert discover_bus(None, "runner").inference_api_key == tmp_path / "secrets" / "runner" / "inference-api.key"
        async with Bus.connect(at.url, credentials=at.credentials) as bus, bus.fleet("*") as fleet:
            while not fleet.members():
                await fleet.wait_for_change()
    secret = [
        path
        for path in (tmp_path / "secrets").rglob("*")
        if path.name in ("nkey", "password", "key.pem", "inference-api.key")
    ]
    logs = [path.read_text(errors="replace") for path in directory.path.rglob("*.log")]
    assert len(secret) == 23 and "permissions violation" not in "".join(logs).lower()
    for line in (line for path in secret for line in path.read_text().splitlines() if "-----" not in line):
        assert not any(line in text for text in (reported, *logs))


async def test_a_run_that_trains_other_models_has_users_of_its_learners(tmp_path: Path) -> None:
    """Made as they are needed: each writes its own model only, and what an earlier learner signed is still believed."""
    directory, sequence = RunDirectory(Path("runs/one")).create(), 0
    users = directory.path.resolve() / "credentials"
    for policies in (("writer",), ("writer", "checker"), ("writer", "checker"), ("writer",)):
        async with start_stack(directory, BusSettings(port=0), "test", policies) as stack:
            folders = {path.name for path in users.glob("learner*")}
            assert folders == ({"learner"} if len(policies) == 1 else {"learner-writer", "learner-checker"})
            for model in policies:
                at = discover_bus(None, "learner", model=model)
                async with Bus.connect(stack.url, credentials=at.credentials) as learner:
                    for other in {*policies} - {model}:
                        with pytest.raises(CredentialsError, match="this user has no right"):
                            await learner.publish_bytes(subjects.weights(other), b"", {}, 10)
                    if model == "writer":
                        version = manifest(sequence, model)
                        publishing = learner.publish(
                            subjects.weights(model), version, msg_id=str(sequence), expect_last=sequence
                        )
                        sequence = await publishing
            async with Bus.connect(stack.url, credentials=stack.find_credentials("inference")) as node:
                listed = [entry.version async for entry, _ in WeightRegistry(node, "writer").list_versions()]
                assert listed == [*range(sequence)][::-1], "of three different users"
    with pytest.raises(CredentialsError, match="learners train writer and not checker: make new users, with --policy"):
        Credentials.read_learner(users, "checker")


def test_a_learner_finds_its_own_folder_or_is_given_it(tmp_path: Path) -> None:
    list(create_users(tmp_path / "one", tls=False, policies=["writer"]))
    list(create_users(tmp_path / "two", tls=False, policies=["writer", "checker"]))
    for place, folder in (("one", "one/learner"), ("one/learner", "one/learner"), ("two", "two/learner-writer")):
        credentials = Credentials.read_learner(tmp_path / place, "writer")
        assert credentials == Credentials.read(tmp_path / folder, "learner")
    checker = Credentials.read_learner(tmp_path / "two" / "learner-checker", "checker")
    assert checker.inbox == "_INBOX_learner-checker"
    for place in ("one", "two"):
        with pytest.raises(CredentialsError, match="and not third: make new users, with --policy for each model"):
            Credentials.read_learner(tmp_path / place, "third")


def test_credentials_of_another_role_are_named_at_once(tmp_path: Path) -> None:
    list(create_users(tmp_path, tls=False))
    for folder, role in (("runner", "client"), ("store", "runner"), ("client", "inference"), ("client", "admin")):
        with pytest.raises(CredentialsError, match=f"no credentials for role {role}: they are those of {folder}"):
            Credentials.read(tmp_path / folder, role)
    assert Credentials.read(tmp_path / "admin", "client").inbox == "_INBOX_admin"


def test_credentials_that_somebody_else_wrote_are_of_any_role(tmp_path: Path) -> None:
    for inbox in ("_INBOX", "_INBOX_team", "acme.runner"):
        (tmp_path / "credentials.json").write_text(json.dumps({"inbox": inbox}))
        assert Credentials.read(tmp_path, "client").inbox == inbox


async def test_status_says_that_a_user_may_not_see_who_is_alive(tmp_path: Path) -> None:
    directory = RunDirectory(Path("runs/one")).create()
    async with start_stack(directory, BusSettings(port=0), "test") as stack:
        folder = directory.path / "credentials" / "runner"
        file = json.loads((folder / "credentials.json").read_text())
        (folder / "credentials.json").write_text(json.dumps({**file, "inbox": "_INBOX"}))  # an operator's own file
        line = [sys.executable, "-m", "lightningbus", "--credentials", str(folder), "status", "--bus", stack.url]
        done = await asyncio.to_thread(subprocess.run, line, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert "this user has no right to see who is alive" in done.stderr.splitlines()[-1]


def test_a_secret_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", "first")
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "key", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert (tmp_path / "key").read_text() == "first" and (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_users_of_a_far_site_come_with_the_step_of_its_server(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "lightningbus", "bus", "create-users", "--leaf", "--out", str(tmp_path / "site")]
    refused = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert refused.returncode == 2 and "uses the cluster's signing keys: give --signing" in refused.stderr
    list(create_users(tmp_path / "cluster", tls=False))
    line += ["--signing", str(tmp_path / "cluster" / "inference")]
    stdout = subprocess.run(
        line, env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    ).stdout
    assert "nats-server -c leaf.conf" in stdout and f"{tmp_path / 'site'} bus" not in stdout
