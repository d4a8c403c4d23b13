"""Training in environments of others through vLLM and the learner: what it did is in ClickHouse."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import ROOT, python
from tests.environments.conftest import PACKAGES
from tests.lightningbus.test_cli import run
from tests.runners.test_agent_lightning import LIGHTNING, PACKAGE, REAL, SHAPE

GROUPS, SAMPLES, STEPS, HELDOUT = 4, 4, 2, 3
PAGE = (ROOT / "docs" / "environments.md").read_text().split("### A first run without a GPU")[1].split("\n### ")[0]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def code(language: str) -> str:
    """The page's block in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return str(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model of a first project."""
    directory = tmp_path_factory.mktemp("model")
    assert run("init", "first", cwd=directory).returncode == 0
    python("model.py", cwd=directory / "first")
    return directory / "first" / "model"


def train(directory: Path, job: dict[str, Any], model: Path) -> dict[str, Any]:
    """Train a few steps by the page's settings; returns the figures that `train` prints."""
    changes = yaml.safe_load(code("yaml"))
    job["inference"] = [changes["inference"][0] | {"model_path": str(model)}]
    job["learner"] |= {**changes["learner"], "max_steps": STEPS, "group_size": SAMPLES, "groups_per_step": GROUPS}
    job["learner"]["model_path"] = str(model)
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    figures: dict[str, Any] = json.loads(
        python("-m", "lightningbus", "train", "-c", directory / "job.yaml", cwd=directory)
    )
    assert (figures["weight_versions"], figures["rollouts_lost"], figures["rollouts_trained_twice"]) == (
        STEPS + 1,
        0,
        0,
    )
    return figures


def query(directory: Path, sql: str) -> list[dict[str, Any]]:
    """What `lightningbus query` says of the run in a directory."""
    rows: list[dict[str, Any]] = json.loads(python("-m", "lightningbus", "query", "--json", sql, cwd=directory))
    return rows


def check_stored(directory: Path) -> None:
    """Rollouts with rewards, whole groups, and tokens of the first version and of the last."""
    outcomes = query(directory, "SELECT DISTINCT outcome, reward IS NULL AS no_reward FROM rollouts")
    assert outcomes == [{"outcome": "ok", "no_reward": 0}]
    groups = query(
        directory,
        "SELECT task_id, uniqExact(sample_index) AS samples FROM rollouts WHERE mode = 'train' "
        "AND rollout_id IN (SELECT rollout_id FROM training_rollouts) GROUP BY task_id",
    )
    assert len(groups) == GROUPS * STEPS and {group["samples"] for group in groups} == {SAMPLES}
    steps = query(directory, "SELECT step, version FROM training_steps ORDER BY step")
    assert [(row["step"], row["version"]) for row in steps] == [(step, step) for step in range(1, STEPS + 1)]
    (tokens,) = query(directory, "SELECT min(version) AS first, max(version) AS last FROM tokens")
    assert (tokens["first"], tokens["last"]) == (0, STEPS)


def write(name: str, python: Path, directory: Path, model: Path, *options: object) -> dict[str, Any]:
    """`lightningbus env`; returns its run file, with few held-out tasks."""
    out = directory / "out"
    done = run(
        "env",
        name,
        "--python",
        python,
        "--out",
        out,
        "--model-path",
        model,
        "--heldout",
        HELDOUT,
        *options,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    job: dict[str, Any] = yaml.safe_load((out / "run.yaml").read_text())
    return job


def test_a_model_is_trained_in_a_taskset_of_verifiers(
    foreign_python: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    options = ["--path", PACKAGES, "--env", "SSL_CERT_FILE"]
    job = write("verifiers:calculator-calls", foreign_python("verifiers"), tmp_path, model, *options)
    train(tmp_path, job, model)
    check_stored(tmp_path)
    rewards = "SELECT count() AS num FROM rollouts WHERE JSONExtractFloat(result, 'metrics', 'right_call') = reward"
    assert query(tmp_path, rewards) == query(tmp_path, "SELECT count() AS num FROM rollouts")


def test_a_model_is_trained_in_the_environment_of_the_page(
    foreign_python: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "calculator_env.py").write_text(code("python"))
    options = ["--path", tmp_path / "modules", "--limit", 64]
    job = write("gymnasium:calculator_env:Calculator-v0", foreign_python("verifiers"), tmp_path, model, *options)
    train(tmp_path, job, model)
    check_stored(tmp_path)
    calls = query(tmp_path, "SELECT DISTINCT num_calls FROM rollouts")
    assert calls == [{"num_calls": 2}], "an episode is two answers, trained on as one rollout"


def test_a_lit_agent_is_trained_and_its_emitted_rewards_are_stored(model: Path, tmp_path: Path) -> None:
    """By the real package where AGENTLIGHTNING_PYTHON names its interpreter, else by a module of its shape."""
    agent = {**(PACKAGE if REAL.exists() else SHAPE), "entrypoint": "calculator:Calculator", "working_dir": LIGHTNING}
    project = model.parent
    lines = (project / "heldout.jsonl").read_text().splitlines(keepends=True)[:HELDOUT]
    (tmp_path / "heldout.jsonl").write_text("".join(lines))
    job = {
        "name": "lit",
        "bus": {"port": 0},
        "store": {"http_port": 0},
        "runners": [
            {name: str(value) if isinstance(value, Path) else value for name, value in agent.items()}
            | {"concurrency": 2}
        ],
        "learner": {"tasks": str(project / "tasks.jsonl")},
        "eval": {"tasks": "heldout.jsonl"},
    }
    train(tmp_path, job, model)
    check_stored(tmp_path)
    emitted = query(
        tmp_path,
        "SELECT reward, reward_span IN (SELECT span_id FROM spans) AS is_stored, "
        "(SELECT count() FROM spans WHERE name = 'agentlightning.annotation') AS num_spans "
        "FROM rollouts",
    )
    assert all(row["is_stored"] for row in emitted) and emitted[0]["num_spans"] == 2 * len(emitted)
