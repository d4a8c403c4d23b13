"""Interpreters with the packages of others, made once; and rollouts in their environments, by a runner."""

import functools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from lightningbus.bus.client import Bus
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.settings.run_file import load_run_settings
from lightningbus.schemas.spans import SpanBatch
from lightningbus.tasks.task_loading import load_tasks
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.examples.conftest import UNREACHABLE
from tests.examples.endpoint import Answer, Endpoint
from tests.lightningbus.test_cli import run
from tests.runners.conftest import calls_of, ended, running, task

FOLDER = Path(__file__).parent
PACKAGES = FOLDER / "packages"
LARGE = {"verifiers_0_1": "700 MB", "openenv": "470 MB", "nemo_gym": "1.4 GB, of Python 3.12"}
"""Interpreters that are tested where somebody has set them up."""


@pytest.fixture(scope="session")
def foreign_python() -> Callable[[str], Path]:
    """From a folder's name to its interpreter; skips where no package index is reachable."""

    @functools.cache
    def set_up(name: str) -> Path:
        if name in LARGE and not (FOLDER / name / ".venv" / ".ready").exists():
            pytest.skip(f"the packages of {name} are {LARGE[name]} and not set up: make -C tests/environments {name}")
        with FileLock(FOLDER / name / ".venv.lock"):  # files of tests run side by side
            make = subprocess.run(["make", "-C", str(FOLDER), name], capture_output=True, text=True, check=False)
        if make.returncode and any(sign in make.stderr for sign in UNREACHABLE):
            pytest.skip(f"no package index is reachable to install {name}")
        assert make.returncode == 0, make.stdout + make.stderr
        return FOLDER / name / ".venv/bin/python"

    return set_up


def write_environment(name: str, python: Path, directory: Path, *options: object) -> str:
    """`lightningbus env` as a user types it; returns what it prints."""
    command = ("env", name, "--python", python, "--out", directory, "--path", PACKAGES, *options)
    done = run(*command, timeout=600)  # a package's first import takes minutes on a busy machine
    assert done.returncode == 0, done.stderr
    return done.stdout


async def run_tasks(
    bus: Bus, directory: Path, answer: Answer, **sampling: Any
) -> tuple[list[SpanBatch], list[dict[str, Any]]]:
    """The last batch of a rollout of each task, by the runner of the run file, against a scripted model; and the
    requests that the model got. ``sampling`` are settings of the tasks.
    """
    settings = load_run_settings(directory / "run.yaml")
    job = parse_job(settings, "run.yaml")
    (runner,) = settings.runners
    tasks = load_tasks(job.learner.tasks or Path())
    async with Endpoint(answer).as_node(bus) as node, running(bus, **runner.model_dump()):
        for entry in tasks:
            await TaskPublisher(bus).publish_task(
                task(id=entry.id, input=entry.input, deadline=120.0, sampling_params=sampling)
            )
        batches = await ended(bus, len(tasks), timeout=180.0)  # the first may install what a harness declares
    return batches, node.requests


async def play(bus: Bus, directory: Path, answer: Answer) -> list[dict[str, Any]]:
    """The results of `run_tasks`.

    Each has ``reward``, ``rewards``, ``task`` and ``num_calls``, and what the agent returned; every rollout must have
    ended well.
    """
    batches, requests = await run_tasks(bus, directory, answer)
    results = []
    for batch in batches:
        assert batch.end is not None and batch.end.outcome == "ok", batch.end
        recorded = calls_of(batch)
        result = json.loads(batch.end.result)
        assert result.get("reward", batch.end.reward) == batch.end.reward
        graded = {"reward": batch.end.reward, "rewards": batch.end.rewards}
        results.append({**graded, **result, "task": batch.task_id, "num_calls": len(recorded)})
    assert sum(result["num_calls"] for result in results) == len(requests), "every call is recorded"
    return sorted(results, key=lambda result: str(result["task"]))
