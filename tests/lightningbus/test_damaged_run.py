"""A run whose directory somebody has half deleted or damaged: each command says what is missing, and shows the rest."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from lightningbus.cli.app import app
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.run.results.run_record import write_record
from lightningbus.run.run_directory.directory import RunDirectory
from tests import seed_store
from tests.learner.conftest import tiny_model
from tests.lightningbus.test_weights_export import Run
from tests.store.conftest import prepared

pytestmark = pytest.mark.integration

LISTED, EXPORT = ("runs", "list"), ("weights", "export", "--run", "small", "out")
REPORT, QUERY = ("report", "outcomes", "--run", "small"), ("query", "SELECT count() FROM rollouts", "--run", "small")
REVOKE = ("weights", "revoke", "0", "--reason", "bad", "--run", "small")
WELL = "0: "
"""A command that ends well."""
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the run ``small``, which has a weight version and rollouts, and the run ``other``."""
    place = tmp_path_factory.mktemp("ended")
    (place / "model").mkdir()
    tiny_model(place / "model")
    run = Run(place / "runs" / "small", place / "model")

    async def publish() -> None:
        async with run.up("learner") as bus:
            weights = run.write(load_file(place / "model" / "model.safetensors"))
            await WeightPublisher(bus, run.settings).publish(weights, version=0, epoch=1, step=0)

    asyncio.run(publish())
    run.add_evaluation("greedy", 0, 0.5)
    write_record(run.directory, {"learner": {"model_path": str(place / "model")}})
    with prepared(run.directory / "store") as store:
        seed_store.insert(store.sql, seed_store.run("small"))
    RunDirectory(place / "runs" / "other").create()
    RunDirectory(run.directory).make_latest()
    return place


@pytest.fixture
def place(ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, which is the current directory; nothing listens where a bus is by default."""
    shutil.copytree(ended, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setattr("lightningbus.run.run_directory.discovery.DEFAULT_URL", "nats://127.0.0.1:1")
    return tmp_path / "copy"


def invoke(*arguments: str) -> str:
    """The exit code of a command and what it prints, which is no traceback."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return f"{done.exit_code}: {done.output}"


def remove(*parts: str) -> Damage:
    def damage(run: Path) -> None:
        for part in parts:
            paths = list(run.glob(part))
            assert paths, part
            for path in paths:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def remove_of_table(table: str, pattern: str) -> Damage:
    """Remove files of a table in the store; ``pattern`` is below its directory."""

    def damage(run: Path) -> None:
        definition = (run / "store" / "metadata" / "lightningbus" / f"{table}.sql").read_text()
        table_id = definition.split("'")[1]
        remove(f"store/store/{table_id[:3]}/{table_id}/{pattern}")(run)

    return damage


def write(name: str, text: str) -> Damage:
    return lambda run: (run / name).write_text(text)


DAMAGES: dict[str, tuple[Damage, dict[tuple[str, ...], str]]] = {
    "nothing": (lambda run: None, {EXPORT: WELL, QUERY: WELL, REPORT: WELL, REVOKE: "0: version 0 is revoked"}),
    "store": (
        remove("store"),
        {LISTED: "runs/small is not whole: it lacks store", EXPORT: WELL, QUERY: "run 'small' has no data in",
         REPORT: "and no store is running: give --sql URL"},
    ),
    "content of the store": (
        remove("store/*"),
        {EXPORT: WELL, QUERY: "run 'small' has no data in runs/small/store"},
    ),
    "files of a table": (
        remove_of_table("raw_rollouts", "."),
        {EXPORT: WELL, QUERY: "small/store lacks the files of the tables raw_rollouts: restore a copy of it",
         REPORT: "lacks the files of the tables"},
    ),
    "bus": (
        remove("bus"),
        {LISTED: "runs/small is not whole: it lacks bus", EXPORT: "run 'small' has no bus of its own: give --bus URL",
         QUERY: WELL, REVOKE: "run 'small' has no bus of its own"},
    ),
    "weight versions": (
        remove("bus/jetstream/**/streams/WEIGHTS"),
        {EXPORT: "the bus of run 'small' has lost its stream WEIGHTS", REVOKE: "has lost its stream WEIGHTS"},
    ),
    "weight files": (
        remove("bus/jetstream/**/streams/OBJ_weights"),
        {EXPORT: "the bus of run 'small' has lost its stream OBJ_weights"},
    ),
    "keys": (remove("credentials"), {EXPORT: "the keys of run 'small' are gone", REVOKE: "the keys of run 'small'"}),
    "keys of a role": (remove("credentials/inference"), {EXPORT: "has no credentials for role inference"}),
    "settings": (remove("work"), {LISTED: "it lacks work", EXPORT: WELL, QUERY: WELL}),
    "settings and record": (
        remove("work", "job.json"), {LISTED: "it lacks work", EXPORT: "give --base-model DIRECTORY"},
    ),
    "all but the logs and the store": (
        remove("bus", "work", "checkpoints", "*.json", "credentials"),
        {LISTED: "it lacks bus, checkpoints, work", EXPORT: "has no bus of its own", REPORT: WELL},
    ),
    "end of learner.json": (
        write("work/learner.json", '{"a'), {LISTED: "the settings of learner", EXPORT: "the settings of learner"},
    ),
    "end of results.json": (
        write("results.json", '{"run'),
        {LISTED: "runs/small/results.json cannot be read", EXPORT: WELL,
         (*EXPORT, "--best"): "results.json is damaged: name a version in place of the best"},
    ),
    "end of job.json": (
        write("job.json", '{"le'),
        {EXPORT: "give --base-model DIRECTORY", (*EXPORT, "--base-model", "model"): WELL},
    ),
    "end of labels.json": (
        write("labels.json", "{"), {LISTED: "runs/small/labels.json cannot be read", REPORT: "correct it, or delete"},
    ),
    "end of endpoints.json": (
        write("endpoints.json", "{"), {EXPORT: "endpoints.json cannot be read", QUERY: "endpoints.json cannot"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("missing", DAMAGES)
def test_what_is_missing_is_said_and_the_rest_is_shown(missing: str, place: Path) -> None:
    damage, expected = DAMAGES[missing]
    damage(place / "runs" / "small")
    listed = invoke(*LISTED)
    assert '"name": "small"' in listed and '"name": "other"' in listed and listed.startswith(WELL)
    assert ("warning" in listed) == (LISTED in expected), listed
    for command, part in expected.items():
        printed = listed if command == LISTED else invoke(*command)
        assert part in printed and (printed.startswith("2: ") or part.startswith(WELL) or command == LISTED), printed


@pytest.mark.parametrize("file", ["data.bin", "primary.cidx"])
def test_rows_that_are_missing_are_a_warning_each_time(file: str, place: Path) -> None:
    remove_of_table("raw_rollouts", f"*_*/{file}")(place / "runs" / "small")
    for command in (QUERY, REPORT, QUERY):
        done = CliRunner().invoke(app, list(command))
        assert done.exit_code == 0, done.output
        assert done.stderr.startswith("warning: results lack rows: files of the store are missing or damaged, of ")
        assert "of raw_rollouts (1 of its parts); restore" in done.stderr and done.stderr.count("\n") == 1
    assert "warning" not in CliRunner().invoke(app, ["query", "SELECT 1", "--run", "small", "--json"]).stdout


def test_a_decision_about_an_ended_run_needs_its_name_and_is_kept(place: Path) -> None:
    for command in (["pin", "0"], ["revoke", "0", "--reason", "bad"], ["approve", "0"], ["unpin"]):
        printed = invoke("weights", *command)
        assert printed.startswith("2: ") and "run 'small' has ended: --run small reads its files" in printed
    assert invoke(*REVOKE) == "0: version 0 is revoked\n"
    assert "version 0 is revoked: give --force" in invoke("weights", "export", "--run", "small", "0", "out")
    assert invoke("weights", "approve", "0", "--run", "small") == "0: version 0 is approved\n"
    assert " is in out\n" in invoke(*EXPORT)


def test_a_half_deleted_run_can_be_deleted(place: Path) -> None:
    remove("store", "bus")(place / "runs" / "small")
    assert invoke("runs", "delete", "small", "--yes").startswith(WELL)
    assert [json.loads(line)["name"] for line in invoke(*LISTED).removeprefix(WELL).splitlines()] == ["other"]
