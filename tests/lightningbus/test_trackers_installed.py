"""MLflow and trackio by their own clients and servers, each in an environment of its own: it is made once, and kept."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from lightningbus.trackers.store_points import PointReader
from tests import seed_store
from tests.commands import ROOT, environment
from tests.examples.conftest import UNREACHABLE
from tests.lightningbus.test_trackers import run_tracker
from tests.polling import until
from tests.store.conftest import prepared

pytestmark = pytest.mark.e2e
ENVIRONMENTS = ROOT / "tests" / ".environments"


def make_environment(package: str) -> Path:
    """The interpreter of an environment with one package; skips where no package index is reachable."""
    directory = ENVIRONMENTS / package
    python, ready = directory / "bin" / "python", directory / ".ready"
    ENVIRONMENTS.mkdir(exist_ok=True)
    with FileLock(ENVIRONMENTS / f"{package}.lock"):
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", package]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
                pytest.skip(f"no package index is reachable to install {package}")
            assert done.returncode == 0, done.stderr[-3000:]
            ready.touch()
    return python


def test_mlflow_has_one_run_after_a_resume(tmp_path: Path) -> None:
    python = make_environment("mlflow-skinny")
    options = ("experiment_name=x", f"tracking_uri={tmp_path / 'runs'}")
    run_tracker(python, tmp_path, "mlflow", "MlflowTracker", *options, MLFLOW_ALLOW_FILE_STORE="true")
    (loss,) = tmp_path.glob("runs/*/*/metrics/actor/loss")
    assert [tuple(line.split()[1:]) for line in loss.read_text().splitlines()] == [("1.0", "1"), ("0.5", "2")]
    run = loss.parents[2]
    assert (run / "params" / "learner.seed").read_text() == "7"
    (reward,) = run.glob("metrics/reward_by_version/eval/greedy/mean_reward")
    assert reward.read_text().split()[1:] == ["0.75", "0"]


def test_trackio_has_one_run_after_a_resume(tmp_path: Path) -> None:
    python = make_environment("trackio")
    run_tracker(python, tmp_path, "trackio", "TrackioTracker", "project=p", TRACKIO_DIR=str(tmp_path / "kept"))
    with sqlite3.connect(tmp_path / "kept" / "p.db") as database:
        rows = database.execute("SELECT run_name, step, CAST(metrics AS TEXT) FROM metrics ORDER BY id").fetchall()
    assert [(name, step) for name, step, _ in rows] == [("small-abc123", 1), ("small-abc123", 2), ("small-abc123", 0)]
    assert '"actor/loss":1.0' in rows[0][2] and '"version":0' in rows[2][2]


LOG_POINTS = """
import json, sys
from importlib import import_module
from pathlib import Path
from lightningbus.trackers.base import TrackedRun

module, kind, points, *options = sys.argv[1:]
config = {"learner": {"seed": 7, "api_key": "hunter2"}, "store": {"url": "http://reader:hunter2@db:8123"}}
run = TrackedRun("one", "abc123", Path(points).parent, config)
settings = dict(option.split("=", 1) for option in options)
tracker = getattr(import_module(f"lightningbus.trackers.{module}"), kind)(run, **settings)
for axis, position, metrics in json.loads(Path(points).read_text()):
    tracker.log(axis, position, metrics)
tracker.flush()
tracker.close()
"""
READ_MLFLOW = """
import json, sys
from mlflow import MlflowClient

client = MlflowClient(sys.argv[1])
(run,) = client.search_runs([client.get_experiment_by_name("x").experiment_id])
values = [
    (name, metric.step, metric.value)
    for name in run.data.metrics
    for metric in client.get_metric_history(run.info.run_id, name)
]
print(json.dumps({"values": values, "params": run.data.params, "status": run.info.status}))
"""
SERVE_TRACKIO = """
import sys, trackio
trackio.show(open_browser=False, block_thread=True, host="127.0.0.1", server_port=int(sys.argv[1]))
"""
READ_TRACKIO = """
import json, sys
from trackio.remote_client import RemoteClient

logs = RemoteClient(sys.argv[1]).predict("p", "one-abc123", api_name="/get_logs")
print(json.dumps(logs))
"""
Value = tuple[str, int, float]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, dict[str, float]]]:
    """What ClickHouse has of a run, as trackers are to get it: axis, position, metrics."""
    with prepared(tmp_path_factory.mktemp("store")) as store:
        seed_store.insert(store.sql, seed_store.run("one", steps=3, groups=2))
        reader = PointReader("one", max_staleness=1)
        list(reader.read(store.sql, is_over=True))  # the first of two looks, between which nothing changes
        read: list[tuple[str, int, dict[str, float]]] = [
            (each.axis, each.position, dict(each.metrics)) for each in reader.read(store.sql, is_over=True)
        ]
    assert {axis for axis, *_ in read} == {"step", "version"}
    return read


def flatten(points: list[tuple[str, int, dict[str, float]]]) -> list[Value]:
    return sorted((name, position, value) for _, position, metrics in points for name, value in metrics.items())


def run_script(python: Path, script: str, *arguments: str, cwd: Path, **variables: str) -> str:
    """What a script prints, run with our code by an interpreter that has the tracker's packages alone."""
    fields = {**environment(), "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [str(python), "-c", script, *arguments], env=fields, cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, directory: Path, **variables: str) -> Iterator[str]:
    """The address of a tracker's own server on loopback, once it answers."""

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    log = directory / "server.log"
    with log.open("w") as output:
        fields = {**environment(), **variables}
        process = subprocess.Popen(
            command, cwd=directory, env=fields, stdout=output, stderr=output, start_new_session=True
        )
    try:
        until(answers, True, 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 9)  # a server that has workers too
        process.wait()


@pytest.mark.timeout(600)
def test_an_mlflow_server_has_the_values_of_clickhouse(points: Any, tmp_path: Path) -> None:
    python, port = make_environment("mlflow"), free_port()
    (tmp_path / "points.json").write_text(json.dumps(points))
    command = [str(python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'kept.db'}"]
    with serving(command, port, tmp_path) as url:
        options = ("mlflow", "MlflowTracker", str(tmp_path / "points.json"), "experiment_name=x", f"tracking_uri={url}")
        run_script(python, LOG_POINTS, *options, cwd=tmp_path)
        read = json.loads(run_script(python, READ_MLFLOW, url, cwd=tmp_path))
    assert sorted(map(tuple, read["values"])) == flatten(points)
    assert read["params"] == {"learner.seed": "7", "store.url": "http://db:8123"}, "no secret"
    assert read["status"] == "FINISHED"


@pytest.mark.timeout(600)
def test_a_trackio_server_has_the_values_of_clickhouse(points: Any, tmp_path: Path) -> None:
    python, port = make_environment("trackio"), free_port()
    (tmp_path / "points.json").write_text(json.dumps(points))
    token = {"TRACKIO_WRITE_TOKEN": "a-token"}
    command = [str(python), "-c", SERVE_TRACKIO, str(port)]
    with serving(command, port, tmp_path, TRACKIO_DIR=str(tmp_path / "server"), **token) as url:
        here = {**token, "TRACKIO_SERVER_URL": url, "TRACKIO_DIR": str(tmp_path / "client")}
        options = ("trackio", "TrackioTracker", str(tmp_path / "points.json"), "project=p")
        run_script(python, LOG_POINTS, *options, cwd=tmp_path, **here)
        logs = json.loads(run_script(python, READ_TRACKIO, url, cwd=tmp_path).splitlines()[-1])
    names = {name for name, *_ in flatten(points)}
    values = [(name, row["step"], value) for row in logs for name, value in row.items() if name in names]
    assert sorted(values) == flatten(points)
