"""The example as its reader meets it: an agent of nobody's framework, problems that do not leak."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.settings.run_file import RunSettings, validate_settings

CALCULATOR = Path(__file__).resolve().parents[2] / "examples" / "calculator"
OURS = {"bus", "common", "inference", "learner", "lightningbus", "runners", "schemas", "store"}


def make_problems(directory: Path, seed: int) -> tuple[list[dict], list[dict]]:
    script = [sys.executable, str(CALCULATOR / "problems.py"), "--seed", str(seed), "--out", str(directory)]
    subprocess.run(script, check=True)
    files = [(directory / name).read_text().splitlines() for name in ("train.jsonl", "heldout.jsonl")]
    train, heldout = ([json.loads(line) for line in file] for file in files)
    return train, heldout


def operands(problem: dict) -> tuple[int, ...]:
    return tuple(sorted(int(word) for word in problem["input"]["question"].split() if word.isdecimal()))


def test_held_out_problems_share_no_operands_with_those_trained_on(tmp_path: Path) -> None:
    train, heldout = make_problems(tmp_path / "a", 0)
    assert (len(train), len(heldout)) == (512, 100)
    assert not {operands(entry) for entry in train} & {operands(entry) for entry in heldout}
    assert len({item["id"] for item in train + heldout}) == 612


def test_a_seed_makes_the_same_problems_and_another_makes_others(tmp_path: Path) -> None:
    assert make_problems(tmp_path / "a", 1) == make_problems(tmp_path / "b", 1) != make_problems(tmp_path / "c", 2)


def test_the_agent_imports_nothing_of_ours() -> None:
    imported = set()
    for node in ast.walk(ast.parse((CALCULATOR / "agent.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported == {"openai", "operator", "re"} and not imported & OURS


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Any OpenAI-compatible endpoint: it calls the tool, then repeats the result."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            text = "<call>12*12</call>" if len(messages) == 1 else messages[-1]["content"].removeprefix("result ")
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.mark.parametrize(("answer", "reward"), [("144", "1.0"), ("145", "0.0")])
def test_the_agent_runs_unchanged_against_any_openai_endpoint(endpoint: str, answer: str, reward: str) -> None:
    code = f"import agent; print(agent.solve({{'question': 'what is 12 times 12 ?', 'answer': '{answer}'}}))"
    env = os.environ | {"OPENAI_BASE_URL": endpoint, "OPENAI_API_KEY": "any"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CALCULATOR, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == reward


def test_the_run_file_is_valid_and_names_what_is_there() -> None:
    settings = validate_settings(RunSettings, yaml.safe_load((CALCULATOR / "run.yaml").read_text()), "run.yaml")
    assert settings.learner is not None and len(settings.runners) == 2
    assert all((CALCULATOR.parents[1] / runner.working_dir / "agent.py").exists() for runner in settings.runners)
    assert parse_job(settings, "run.yaml").eval.tasks == Path("runs/calculator/heldout.jsonl")
