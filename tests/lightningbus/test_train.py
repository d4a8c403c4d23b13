"""`lightningbus train`: a job from its first evaluation to its last, with a real learner and the stand-in for vLLM."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import ROOT, environment
from tests.learner.conftest import fitting_model
from tests.polling import until

pytestmark = [pytest.mark.e2e, pytest.mark.main_job]

STEPS, GROUPS, SAMPLES, HELDOUT = 4, 2, 2, 3
EVERY = 2
"""Versions from one evaluation to the next."""
SUITE: dict[str, Any] = {"name": "hard", "tasks": "heldout.jsonl", "samples": 4, "sampling": ["sampled"], "every": 3}
WAYS = [
    (label, version)
    for own_version, suite_version in ((0, 0), (EVERY, SUITE["every"]), (STEPS, STEPS))
    for label, version in (("greedy", own_version), ("sampled", own_version), ("hard-sampled", suite_version))
]


def job(directory: Path) -> dict[str, Any]:
    for name, count in (("train", 6), ("heldout", HELDOUT)):
        lines = [json.dumps({"id": f"{name}-{n}", "input": {"question": f"{n}"}}) + "\n" for n in range(count)]
        (directory / f"{name}.jsonl").write_text("".join(lines))
    engine = [sys.executable, str(ROOT / "tests" / "chaos" / "vllm.py")]
    return {
        "name": "small",
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.1},
        "inference": [{"model_path": "model", "vllm_command": engine, "max_model_len": 256}],
        "runners": [{"entrypoint": "steady:solve", "working_dir": str(ROOT / "tests" / "agents"), "concurrency": 2}],
        "learner": {
            "model_path": "model",
            "tasks": "train.jsonl",
            "group_size": SAMPLES,
            "groups_per_step": GROUPS,
            "max_steps": STEPS,
            "cpu_threads": 1,
            "seq_len": 128,
            "engine": {"check_model": False},  # the stand-in computes no model
        },
        "eval": {"tasks": "heldout.jsonl", "samples": 2, "every": EVERY, "suites": [SUITE]},
    }


@pytest.mark.long
def test_a_job_whose_engine_disagrees_ends_before_the_first_step(tmp_path: Path) -> None:
    """The stand-in for vLLM scores tokens as no model does."""
    fitting_model(tmp_path / "model")
    settings = job(tmp_path)
    settings["learner"]["engine"]["check_model"] = True
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))
    done = run_command("train", "-c", "train.yaml", cwd=tmp_path, code=2)
    assert "no weight version of 'policy' is left to serve: engine and learner differ by" in done.stderr


@pytest.mark.long
def test_a_job_that_was_killed_goes_on_to_figures_and_a_picture(tmp_path: Path) -> None:
    """It is killed, with all its processes, in the middle of an evaluation during training."""
    fitting_model(tmp_path / "model")
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(job(tmp_path)))
    run = tmp_path / "runs" / "small"
    kept = kill_once(lambda: [each for each in evaluations(run) if each["version"]], tmp_path)
    assert [(each["label"], each["version"]) for each in kept] == WAYS[: len(kept)] and len(kept) > 2
    done = run_command("train", "--resume", "-c", "train.yaml", cwd=tmp_path)
    figures = json.loads(done.stdout)
    assert json.loads((run / "results.json").read_text()) == figures
    assert {path.name for path in run.parent.iterdir()} == {"small", "latest"}, "no run was moved aside"
    assert figures["evaluations"][: len(kept)] == kept, "not evaluated again"
    assert [(each["label"], each["version"]) for each in figures["evaluations"]] == WAYS
    assert all(0 <= each["mean_reward"] <= 1 and each["standard_error"] >= 0 for each in figures["evaluations"])
    assert figures["rollouts"] == STEPS * GROUPS * SAMPLES + 3 * HELDOUT * (1 + 2 + SUITE["samples"])
    assert [list(each["pass_at"]) for each in figures["evaluations"]][:3] == [["1"], ["1", "2"], ["1", "2", "4"]]
    assert (figures["steps"], figures["weight_versions"], figures["num_starts"]) == (STEPS, STEPS + 1, 2)
    assert (figures["rollouts_lost"], figures["rollouts_trained_twice"], figures["perfect_reward"]) == (0, 0, 1.0)
    assert figures["tokens_sampled"] > figures["tokens_trained"] > 0
    assert (figures["share_trained"], figures["excluded"], figures["is_finished"]) == (1.0, {}, True)
    assert set(figures["seconds_by_phase"]) == {"starting", "evaluating", "training", "counting"}
    assert (run / "reward.png").read_bytes().startswith(b"\x89PNG")
    again = run_command("up", "-c", "train.yaml", cwd=tmp_path, code=2)
    assert f"has all its {STEPS} steps; raise learner.max_steps to go on" in again.stderr
    run_printed_export(done.stderr, tmp_path)


def run_command(*arguments: str, cwd: Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """A command that ends with a code."""
    command = [sys.executable, "-m", "lightningbus", *arguments]
    fields = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=cwd, env=fields, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-3000:]
    return done


def run_printed_export(printed: str, directory: Path) -> None:
    """Run the command that the last lines name; it writes the model of the last version."""
    (command_line,) = re.findall("export the model: lightningbus (.*)", printed)
    arguments = shlex.split(command_line)
    exported = run_command(*arguments, cwd=directory)
    assert exported.stdout == f"version {STEPS} of run small is in {arguments[-1]}\n"
    assert (directory / arguments[-1] / "model.safetensors").is_file()
    shutil.rmtree(directory / arguments[-1])


def evaluations(run: Path) -> list[dict[str, Any]]:
    """Those in the results so far."""
    results = run / "results.json"
    return json.loads(results.read_text())["evaluations"] if results.exists() else []


def kill_once(is_time: Callable[[], object], directory: Path) -> list[dict[str, Any]]:
    """Start the job and kill it as soon as it is time; returns its evaluations until then."""
    command = [sys.executable, "-m", "lightningbus", "train", "-c", "train.yaml"]
    with (directory / "killed.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=directory, stdout=log, stderr=log, env={**environment(), "PYTHONPATH": str(ROOT)}
        )
    try:
        until(lambda: bool(is_time()) or process.poll() is not None, True, 300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL, (directory / "killed.log").read_text()
    return evaluations(directory / "runs" / "small")
