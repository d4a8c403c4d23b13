"""Who is let in by the bus of a run on one machine: its own roles and terminals, and nobody else."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security.credentials import Credentials
from lightningbus.run.processes.stack import start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import connect, discover_bus
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.runners.settings import RunnerSettings
from tests.commands import environment
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

AGENTS = Path(__file__).resolve().parents[1] / "agents"


@pytest.fixture(autouse=True)
def bare_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in an empty directory, with none of our variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("BUS", "ACCESS", "INFERENCE_API_KEY_FILE"):
        monkeypatch.delenv(f"LIGHTNINGBUS_{name}", raising=False)


async def test_the_bus_of_a_run_is_open_to_nobody_by_default() -> None:
    """Its users are made for it, in its directory; other terminals find them, and a stranger is sent away."""
    directory = RunDirectory(Path("runs/one")).create()
    async with start_stack(directory, BusSettings(port=0), "test") as stack:
        access = directory.credentials
        assert access.stat().st_mode & 0o777 == 0o700
        with pytest.raises(CredentialsError, match="rejects unknown users"):
            async with Bus.connect(stack.url):
                pass
        async with connect(None, "other terminal") as client, client.fleet("*") as fleet:
            settings = RunnerSettings(
                entrypoint="plain:asks", working_dir=AGENTS, concurrency=1, id="one", agent_name="calc", ack_wait=7
            )
            await stack.supervisor.start(ChildSpec("runner-0", "runner", settings))
            await stack.wait_for_member(
                lambda beat: beat.role == "runner" and beat.state == "running", "runner", HANG_SECONDS
            )
            while not (runners := [beat for beat in fleet.members() if beat.role == "runner"]):
                await fleet.wait_for_change()
            assert [beat.id for beat in runners] == ["one"]
        first = (access / "admin" / "nkey").read_text()
    async with start_stack(directory, BusSettings(port=0), "test"):
        assert (access / "admin" / "nkey").read_text() == first, "a run that goes on keeps its users"


async def test_a_run_is_open_where_that_is_asked_for() -> None:
    directory = RunDirectory(Path("runs/one")).create()
    async with (
        start_stack(directory, BusSettings(port=0, insecure=True), "test") as stack,
        Bus.connect(stack.url, credentials=Credentials()) as bus,
    ):
        assert (await bus.js.stream_info("TASKS")).state.messages == 0
        access = discover_bus(None, "client").credentials
        assert access is not None and not access.has_user, "it has the signing keys alone"


def test_a_bus_alone_says_that_it_is_open() -> None:
    """On loopback, without --credentials; with users it has nothing to say."""
    command = [sys.executable, "-P", "-m", "lightningbus", "bus", "--port", "0", "--dir", "bus"]
    server = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("bus: nats://127.0.0.1:")
    server.terminate()
    _, errors = server.communicate(timeout=HANG_SECONDS)
    assert "it has no users: whoever reaches it may do anything" in errors
