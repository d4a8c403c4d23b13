"""Commands that read versions of a run that has ended: from its own files, or a sentence that says how."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.errors import BusError
from lightningbus.bus.prompts import PromptRegistry
from lightningbus.cli.app import app
from lightningbus.optimize.plan.verdict import compare
from lightningbus.optimize.result import OptimizeResult
from lightningbus.optimize.round import RoundResult
from lightningbus.run.errors import UserError
from lightningbus.run.results.prompt_files import write_prompts
from lightningbus.run.run_data.run_bus import open_bus
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.schemas.prompts import PromptVersion, digest_of


def version_of(text: str) -> PromptVersion:
    return PromptVersion(name="solver", version=0, text=text, sha256=digest_of(text), created_at_ns=0)


async def run(*arguments: str) -> str:
    """What a command prints, its errors too."""
    done = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    return f"{done.exit_code}: {done.output}"


@pytest.mark.integration
async def test_prompts_and_weights_of_an_ended_run_are_read_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightningbus.run.run_directory.discovery.DEFAULT_URL", "nats://127.0.0.1:1")
    directory = RunDirectory(Path("runs/small")).create()
    async with nats_server(directory.path / "bus") as server, Bus.connect(server.url, "test") as bus:
        await bus.provision()
        await PromptRegistry(bus, "solver").publish(version_of("Add."))
    assert await run("prompts", "show", "solver", "--run", "small") == "0: Add.\n"
    assert '"text": "Add."' in await run("prompts", "list", "--run", "runs/small", "--json")
    assert "has no version" in await run("weights", "list", "--run", "small", "--model", "policy")
    for command in (["prompts", "show", "solver", "4"], ["weights", "list"]):
        printed = await run(*command)
        assert printed.startswith("2: ") and "run 'small' has ended: --run small reads its files" in printed


async def test_an_address_that_is_given_is_not_taken_for_an_ended_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(Path("runs/small")).create()
    (directory.path / "bus" / "jetstream").mkdir()
    with pytest.raises(BusError):
        async with open_bus("nats://127.0.0.1:1", None, "test"):
            pass


def test_the_texts_in_use_are_written_as_they_are(tmp_path: Path) -> None:
    text = "Add.\r\nß "
    files = write_prompts(tmp_path, {"solver": version_of(text)})
    assert (tmp_path / files["solver"].file).read_bytes() == text.encode() and files["solver"].version == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"prompts cannot be written: Not a directory"):
        write_prompts(tmp_path / "file", {"solver": version_of(text)})


def test_an_optimisation_says_where_the_texts_lie(tmp_path: Path) -> None:
    (tmp_path / "bus" / "jetstream").mkdir(parents=True)
    files = write_prompts(tmp_path, {"solver": version_of("Add.")})
    nothing = OptimizeResult(RoundResult({"solver": "Add."}, None, {}, 9, 1), tmp_path, files)
    assert list(nothing.describe()) == [
        "1 candidates, 9 rollouts",
        "no proposal was better: nothing is released",
        f"text of prompt solver, version 0: {tmp_path}/prompts/solver.txt",
        f"all versions: lightningbus prompts list --run {tmp_path}",
    ]
    better = RoundResult({"solver": "Add up."}, compare([0.0], [1.0], 0.0), {"solver": 4}, 9, 2)
    result = OptimizeResult(better, tmp_path, files)
    assert "released: version 4 of prompt solver; held-out reward not worse: 0 before, 1 after" in result.describe()
    result.write()
    assert json.loads((tmp_path / "results.json").read_text())["prompts"] == {
        "solver": {"version": 0, "file": "prompts/solver.txt"}
    }
