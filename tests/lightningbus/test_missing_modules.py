"""A module that cannot be found: its extra is named; one of ours is told as an incomplete installation."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightningbus.common.missing_modules import describe_missing_module
from tests.commands import ROOT, environment

pytestmark = pytest.mark.integration
OF_EXTRAS = (
    "cryptography", "chdb", "clickhouse_connect", "torch", "verl", "numpy", "safetensors", "zstandard", "xxhash", "PIL",
    "transformers", "uvicorn", "fastapi", "obstore", "opentelemetry.sdk", "pyarrow", "datasets", "matplotlib", "openai",
    "gepa", "vllm", "ray", "peft", "pandas",
)  # fmt: skip
"""What an environment without extras lacks."""
WITHOUT_EXTRAS = f"sys.modules.update(dict.fromkeys({OF_EXTRAS!r}))\n"
MAIN = "from lightningbus.cli.app import main; main()"
ALONE = "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in each.__module__]\n"
"""The checkout that is installed here is not found."""
SECONDS = 120


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of our package without links, first on the path."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lightningbus", tmp_path / "checkout" / "lightningbus", ignore=ignored)
    return tmp_path / "checkout"


def run(code: str, *arguments: str, directory: Path, path: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """A program that finds our package in ``path``."""
    env = {**environment(), "PYTHONPATH": str(path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-P", "-c", ALONE + code, *arguments]
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("bus/weights/transports", ["inference", "--model-path", "m"]),
        ("bus/weights/transports", ["learner", "--model-path", "m"]),
        ("bus/weights/transports", ["auditor", "--model-path", "m"]),
        ("store/reports/counted_rewards.py", ["store"]),
        ("run/preflight/job_checks.py", ["train", "-c", "run.yaml"]),
        ("bus/embedded", ["doctor"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_module_of_ours_is_no_missing_extra(
    checkout: Path, tmp_path: Path, missing: str, command: list[str]
) -> None:
    path = checkout / "lightningbus" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = run(MAIN, *command, directory=tmp_path, path=checkout)
    name = missing.removesuffix(".py").replace("/", ".")
    assert (
        done.returncode == 2 and f"this installation of lightningbus is incomplete: lightningbus.{name}" in done.stderr
    )
    assert "lightningbus[" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["bus/weights/transports", "inference/engine/vllm_server.py"])
def test_the_doctor_names_modules_that_are_imported_and_missing(checkout: Path, tmp_path: Path, missing: str) -> None:
    path = checkout / "lightningbus" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = run(MAIN, "doctor", directory=tmp_path, path=checkout)
    name = missing.removesuffix(".py").replace("/", ".")
    assert done.returncode == 1 and f"error   lightningbus: incomplete: lightningbus.{name}" in done.stdout, (
        done.stdout + done.stderr
    )


def test_the_doctor_names_modules_of_an_emptied_package(checkout: Path, tmp_path: Path) -> None:
    auditor = checkout / "lightningbus" / "auditor"
    shutil.rmtree(auditor)
    auditor.mkdir()
    (auditor / "__init__.py").touch()
    done = run(MAIN, "doctor", directory=tmp_path, path=checkout)
    assert done.returncode == 1 and "error   lightningbus: incomplete: lightningbus.auditor." in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "train -c run.yaml",
        "up -c run.yaml",
        "store",
        "ui",
        "query 'SELECT 1'",
        "steps replay --step 1",
        "inference --model-path m",
        "learner --model-path m",
        "auditor --model-path m",
        "weights export out",
    ],
)
def test_a_command_without_its_extra_names_it(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.yaml").write_text("name: first\n")
    done = run(WITHOUT_EXTRAS + MAIN, *shlex.split(command), directory=tmp_path)
    assert done.returncode == 2 and "is not installed: pip install 'lightningbus[" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_extra_is_found_by_the_requirement_that_it_has() -> None:
    assert "lightningbus[store]" in describe_missing_module("clickhouse_connect.driver")
    assert "lightningbus[otel]" in describe_missing_module("opentelemetry.sdk")
    assert "lightningbus[inference]" in describe_missing_module("numpy", "inference")
    assert "lightningbus doctor" in describe_missing_module("nobody_has_this")
    assert "incomplete" in describe_missing_module("lightningbus.absent", "inference")
    assert "incomplete" not in describe_missing_module("schemas.absent")
