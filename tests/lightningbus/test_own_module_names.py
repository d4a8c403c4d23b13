"""Modules of a user that have the names of our packages' folders: each place finds the user's own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import Qwen2Config

from lightningbus.runners.agent.executors import WORKER_SCRIPT
from tests.commands import ROOT, environment
from tests.learner.conftest import tiny_tokenizer, without_tensors
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

NAMES = sorted(path.name for path in (ROOT / "lightningbus").iterdir() if path.is_symlink())
IMPORTS = "".join(f"import {name}\nassert {name}.OWNER == 'user'\n" for name in NAMES)
FUNCTIONS = """
import json, os, urllib.request

def solve(task):
    if "OPENAI_BASE_URL" in os.environ:
        ask(os.environ["OPENAI_BASE_URL"] + "/chat/completions")
    return {"answer": 1}

def ask(url):
    body = {"model": "helper", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()

def judge(task, result):
    return 1.0

def share(episodes, estimate, settings):
    return [[1.0] * len(episode.log_probs) for episode in episodes]

def loss(*arguments):
    raise NotImplementedError
"""
SCRIPT = f"""
import lightningbus
{IMPORTS}
for name in lightningbus.__all__:
    getattr(lightningbus, name)
import lightningbus.cli.app, lightningbus.learner.learner, lightningbus.run.jobs.train_job
{IMPORTS}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A project whose modules have all our names, as files and as folders by turns."""
    for number, name in enumerate(NAMES):
        if number % 2:
            (tmp_path / f"{name}.py").write_text("OWNER = 'user'\n")
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("OWNER = 'user'\n")
    (tmp_path / "agent.py").write_text(IMPORTS + FUNCTIONS)
    return tmp_path


def run(*command: str | Path, cwd: Path, text: str = "") -> "subprocess.CompletedProcess[str]":
    """A program that finds lightningbus as it is installed."""
    env = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=env, input=text, capture_output=True, text=True, timeout=HANG_SECONDS
    )


@pytest.mark.long
def test_a_training_job_takes_agent_reward_credit_and_loss_beside_its_run_file(directory: Path) -> None:
    tiny_tokenizer(directory / "model")
    Qwen2Config(num_hidden_layers=1, hidden_size=64, num_attention_heads=2, vocab_size=320).save_pretrained(
        directory / "model"
    )
    without_tensors(directory / "model")
    for name in ("train.jsonl", "heldout.jsonl"):
        (directory / name).write_text(json.dumps({"id": name, "input": 1}) + "\n")
    job: dict[str, Any] = {
        "store": {},
        "inference": [{"model_path": "model"}],
        "learner": {
            "model_path": "model",
            "tasks": "train.jsonl",
            "engine": {"check_model": False},
            "credit": {"method": "agent:share"},
            "actor": {"policy_loss": "agent:loss"},
        },
        "runners": [
            {
                "entrypoint": "agent:solve",
                "reward_fn": "agent:judge",
                "endpoints": {"helper": {"url": "http://127.0.0.1:1/v1"}},
            }
        ],
        "eval": {"tasks": "heldout.jsonl"},
    }
    (directory / "run.yaml").write_text(yaml.safe_dump(job))
    done = run("-m", "lightningbus", "train", "-c", "run.yaml", "--dry-run", cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agent:solve: task 'train.jsonl' with scripted answers: 1 model call, reward 1, " in done.stdout


def test_a_script_or_notebook_keeps_its_own_modules(directory: Path) -> None:
    (directory / "script.py").write_text(SCRIPT)
    done = run("script.py", cwd=directory)
    assert done.returncode == 0, done.stderr


def test_an_agents_process_finds_the_modules_beside_the_agent(directory: Path) -> None:
    job = json.dumps({"job": 1, "arguments": [{"n": 1}]}) + "\n"
    done = run(WORKER_SCRIPT, "exclusive", "agent:solve", cwd=directory, text=job)
    ready, answer = map(json.loads, done.stdout.splitlines())
    assert ready["ready"] is True and answer["value"] == {"answer": 1}
