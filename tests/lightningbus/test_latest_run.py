"""The run of a command that names none."""

import json
import os
from pathlib import Path

import pytest

from lightningbus.run.processes.stack import start_stack
from lightningbus.run.run_directory.directory import Endpoints, RunDirectory
from lightningbus.run.run_directory.discovery import discover_bus
from lightningbus.run.settings.run_file import BusSettings

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def evaluate() -> None:
    """Start and stop the servers of an evaluation by itself."""
    with RunDirectory(Path("runs/evaluation")).lock() as directory:
        async with start_stack(directory, BusSettings(port=0), "evaluation", is_evaluation=True):
            pass


def find_latest() -> str:
    latest = RunDirectory.latest()
    assert latest is not None
    return latest.path.name


async def test_an_evaluation_is_the_latest_run_only_where_nothing_was_trained() -> None:
    await evaluate()
    assert find_latest() == "evaluation"
    trained = RunDirectory(Path("runs/trained")).create()
    (trained.path / "work" / "learner.json").write_text(json.dumps({"model": "policy"}))
    await evaluate()
    assert find_latest() == "trained"


def test_the_bus_is_that_of_the_run_which_is_up() -> None:
    up, ended, latest = (RunDirectory(Path("runs") / name).create() for name in ("up", "ended", "newest"))
    for run, pid, port in ((up, os.getpid(), 1), (ended, 2**22 + 1, 2)):  # no process has that id
        run.write_endpoints(Endpoints(pid, f"nats://127.0.0.1:{port}"))
    assert discover_bus(None, "client").url == "nats://127.0.0.1:1"
    assert discover_bus(None, "client", latest).url == "nats://127.0.0.1:4222", "another run was named"
    latest.write_endpoints(Endpoints(os.getpid(), "nats://127.0.0.1:3"))
    assert discover_bus(None, "client").url == "nats://127.0.0.1:3"
