"""MLflow and trackio by their own clients, each in an environment of its own: it is made once, and kept."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.commands import ROOT
from tests.examples.conftest import UNREACHABLE
from tests.lightningbus.test_trackers import run_tracker

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
