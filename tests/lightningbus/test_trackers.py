"""Metrics of a run in trackers, by their own clients; each point once, also when a tracker was down."""

import asyncio
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.trackers import run_trackers, store_points
from lightningbus.trackers.base import Axis, TrackedRun
from lightningbus.trackers.follower import Follower, PointJournal
from lightningbus.trackers.jsonl import JsonlTracker
from lightningbus.trackers.settings import MlflowSettings, TrackerSettings
from lightningbus.trackers.store_points import Point, PointReader
from lightningbus.trackers.tensorboard import TensorBoardTracker
from tests.commands import ROOT, environment
from tests.polling import HANG_SECONDS

POINTS = [
    Point("step/1", "step", 1, {"actor/loss": 0.5}),
    Point("step/2", "step", 2, {"actor/loss": 0.25}),
    Point("reward_by_version/eval/greedy/0", "version", 0, {"reward_by_version/eval/greedy/mean_reward": 0.75}),
]
LOG = """
import sys
from importlib import import_module
from pathlib import Path
from lightningbus.trackers.base import TrackedRun

module, kind, directory, *options = sys.argv[1:]
run = TrackedRun("small", "abc123", Path(directory), {"learner": {"seed": 7}})
settings = dict(option.split("=", 1) for option in options)
for step in (1, 2):  # the second one resumes the first
    tracker = getattr(import_module(f"lightningbus.trackers.{module}"), kind)(run, **settings)
    tracker.log("step", step, {"actor/loss": 1 / step})
    if step == 2:
        tracker.log("version", 0, {"reward_by_version/eval/greedy/mean_reward": 0.75})
    tracker.flush()
    tracker.close()
"""


def run_tracker(python: str | Path, directory: Path, *arguments: str, **variables: str) -> None:
    fields = {**environment(), "PYTHONPATH": os.pathsep.join([str(ROOT)]), **variables}
    command = [str(python), "-c", LOG, *arguments[:2], str(directory), *arguments[2:]]
    done = subprocess.run(
        command, env=fields, cwd=directory, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Client:
    """A tracker that is down for its first calls."""

    def __init__(self, num_failures: int = 0) -> None:
        self.logged: list[tuple[str, int]] = []
        self.num_failures, self.is_closed = num_failures, False

    def log(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise ConnectionError("no answer")
        self.logged.append((axis, position))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def follow(client: Client, path: Path) -> None:
    """Follow a run that is over to its end."""
    follower = Follower("scripted", lambda: client, lambda *_: POINTS, PointJournal(path), poll_seconds=0.01)
    follower.finish()
    follower.start()
    follower.join(HANG_SECONDS)
    assert not follower.is_alive()


def test_a_tracker_that_is_down_loses_nothing_and_a_resume_logs_nothing_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scripted.json"
    client = Client(num_failures=2)
    with caplog.at_level(logging.WARNING):
        follow(client, path)
    assert client.logged == [("step", 1), ("step", 2), ("version", 0)] and client.is_closed
    assert [record.getMessage() for record in caplog.records] == [
        "tracker scripted: no answer; its points wait until it answers"
    ]
    again = Client()
    follow(again, path)
    assert again.logged == []


async def test_an_interrupted_run_is_not_over_for_its_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards of versions whose rollouts go on at the resume are left to it."""
    looks: list[bool] = []

    def read(self: PointReader, client: Any, *, is_over: bool, last_steps: Mapping[str, int]) -> list[Point]:
        looks.append(is_over)
        return []

    monkeypatch.setattr(PointReader, "read", read)
    monkeypatch.setattr(run_trackers, "connect", lambda address, database: None)
    for error in (asyncio.CancelledError(), None):
        looks.clear()
        with suppress(asyncio.CancelledError):
            settings = TrackerSettings.model_validate({"jsonl": {}})
            async with run_trackers.follow_run(tmp_path, settings, lambda: ("here", "db"), {}, 1, ["policy"]):
                if error is not None:
                    raise error
        assert set(looks) == {error is None}


class Store:
    """Answers the five queries as the store does at moments that a test chooses."""

    def __init__(self) -> None:
        self.rewards = [
            ("policy", "train", "", 0, 4, 0.5, 0.1, None),
            ("policy", "eval", "greedy", 0, 2, 1.0, 0.0, 0.0),
            ("judge", "train", "", 0, 4, 0.5, 0.1, None),  # a model that nobody trains
        ]
        self.named_rewards = [("policy", "eval", "greedy", "no/t", 0, 2, 1.0, None)]
        self.unfinished: list[tuple[str, str]] = []

    def query(self, query: str, *, parameters: Mapping[str, Any]) -> Any:
        answers = {
            store_points.STEPS: [("policy", 1, {"actor/loss": 0.5})] if parameters.get("after", -1) < 1 else [],
            store_points.REWARDS: self.rewards,
            store_points.NAMED_REWARDS: self.named_rewards,
            store_points.UNFINISHED: self.unfinished,
            store_points.NEWEST: [("policy", 1)],
        }
        return type("Result", (), {"result_rows": answers[query]})


def test_rewards_of_a_version_are_logged_once_they_change_no_more() -> None:
    store: Any = Store()
    reader = PointReader("small", max_staleness=1)

    def keys(*, is_over: bool = False) -> list[str]:
        return [point.key for point in reader.read(store, is_over=is_over)]

    assert keys() == ["step/1"]
    finals = ["step/1", "reward_by_version/eval/greedy/0", "reward_by_name/eval/greedy/no_t/0"]
    assert keys() == finals, "rollouts of version 0 may still be trained"
    store.unfinished = [("eval", "greedy")]
    assert keys() == ["step/1"]
    assert keys(is_over=True) == ["step/1", "reward_by_version/train/0"]


def test_steps_that_a_tracker_has_are_not_read_again_until_the_run_is_over(tmp_path: Path) -> None:
    journal = PointJournal(tmp_path / "scripted.json")
    assert journal.last_steps == {}
    journal.add(POINTS)
    assert journal.last_steps == PointJournal(tmp_path / "scripted.json").last_steps == {"": 2}
    store: Any = Store()
    reader = PointReader("small", max_staleness=1)
    assert [point.key for point in reader.read(store, is_over=False, last_steps={"": 0})] == ["step/1"]
    assert not [point for point in reader.read(store, is_over=False, last_steps={"": 1}) if point.axis == "step"]
    assert "step/1" in [point.key for point in reader.read(store, is_over=True, last_steps={"": 1})]


def test_tensorboard_reads_the_event_files(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(TrackedRun("small", "abc", tmp_path, {"learner": {"seed": 7}}))
    for point in POINTS:
        tracker.log(point.axis, point.position, point.metrics)
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("actor/loss")] == [(1, 0.5), (2, 0.25)]
    (reward,) = events.Scalars("reward_by_version/eval/greedy/mean_reward")
    assert (reward.step, reward.value) == (0, 0.75)
    assert '"seed": 7' in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()


def test_a_file_has_an_object_of_json_a_step_also_after_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    run = TrackedRun("small", "abc", tmp_path, {})
    first = JsonlTracker(run)
    first.log("step", 1, {"actor/loss": 0.5})
    first.flush()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "actor')
    resumed = JsonlTracker(run)
    for point in POINTS[1:]:
        resumed.log(point.axis, point.position, point.metrics)
    resumed.log("step", 3, {"actor/loss": math.nan})
    resumed.close()
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 1, "actor/loss": 0.5},
        {"step": 2, "actor/loss": 0.25},
        {"step": 3, "actor/loss": None},
        {"version": 0, "reward_by_version/eval/greedy/mean_reward": 0.75},
    ]


def test_all_rewards_of_a_version_that_are_final_are_one_object_of_a_file(tmp_path: Path) -> None:
    tracker = JsonlTracker(TrackedRun("small", "abc", tmp_path, {}))
    series = {"reward_by_version/train/mean_reward": 0.5, "reward_by_name/train/brief/mean_reward": 0.25}
    for version in (4, 3):
        for name, reward in series.items():
            tracker.log("version", version, {name: reward})
    tracker.flush()
    later = {"reward_by_version/eval/greedy/mean_reward": 0.75}
    tracker.log("version", 3, later)
    tracker.flush()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"version": 3, **series}, {"version": 4, **series}, {"version": 3, **later},
    ]  # fmt: skip


@pytest.mark.integration
def test_wandb_keeps_the_points_of_an_offline_run(tmp_path: Path) -> None:
    run_tracker(sys.executable, tmp_path, "wandb", "WandbTracker", "project=p", WANDB_MODE="offline")
    files = list((tmp_path / "wandb").glob("offline-run-*/run-abc123.wandb"))
    assert len(files) == 2, "the run, and its resume"
    content = b"".join(file.read_bytes() for file in files)
    assert content.count(b"actor/loss") >= 2 and b"reward_by_version/eval/greedy/mean_reward" in content


def test_a_tracker_that_is_unknown_or_not_installed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"trackers\.tensorbord: no such setting"):
        validate_settings(RunSettings, {"trackers": {"tensorbord": {}}}, "run.yaml")
    monkeypatch.setattr("lightningbus.trackers.settings.find_spec", lambda name: None)
    assert validate_settings(RunSettings, {"trackers": {"jsonl": {}}}, "run.yaml").trackers.enabled == ["jsonl"]
    with pytest.raises(UserError, match=r"wandb is not installed: pip install 'lightningbus\[wandb\]'"):
        validate_settings(RunSettings, {"trackers": {"wandb": {}}}, "run.yaml")


def test_an_mlflow_without_a_server_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValidationError, match="no server is named: set tracking_uri, or the variable"):
        MlflowSettings()
    for directory in ("mlruns", "/data/mlruns", "file:///data/mlruns"):
        with pytest.raises(ValidationError, match="is a directory, which cannot hold our metrics"):
            MlflowSettings(tracking_uri=directory)
    assert MlflowSettings(tracking_uri="http://127.0.0.1:5000").experiment_name == "lightningbus"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert MlflowSettings().tracking_uri is None
