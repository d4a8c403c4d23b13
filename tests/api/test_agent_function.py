"""An agent that is a function of a notebook runs in a process of its own, or one sentence says why it cannot."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lightningbus.api.agent_function import parse_runner, runner_fields
from lightningbus.run.errors import UserError
from lightningbus.runners.agent.executors import WORKER_SCRIPT
from lightningbus.runners.settings import RunnerSettings
from tests.agents import plain
from tests.commands import ROOT

NOTEBOOK = """
import json, operator
from pathlib import Path

FACTOR = 3
LOCK = None


def scale(number):
    return operator.mul(number, FACTOR)


async def solve(task):
    return float(scale(task["n"]) + len(Path("data.txt").read_text()))
"""


def notebook_names(source: str) -> dict[str, Any]:
    """What cells of a notebook define: names of a module that is no file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(source, names)
    return names


def call_in_worker(fields: dict[str, Any], argument: Any, cwd: Path) -> Any:
    """The value that a runner's worker gets from the agent."""
    done = subprocess.run(
        [sys.executable, str(WORKER_SCRIPT), "exclusive", fields["entrypoint"]],
        cwd=cwd / fields["working_dir"],
        input=json.dumps({"job": 1, "arguments": [argument]}) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    ready, answer = map(json.loads, done.stdout.splitlines())
    assert ready["ready"] is True
    return answer.get("value", answer)


@pytest.mark.unit
def test_another_agent_of_a_run_has_its_endpoints_and_its_grader(tmp_path: Path) -> None:
    url, other = "http://127.0.0.1:8000/v1", "http://127.0.0.1:9000/v1"
    recorded = RunnerSettings.model_validate(
        {
            "entrypoint": "agent:solve", "concurrency": 3, "graded": True, "model_aliases": {"*": "policy"},
            "endpoints": {"policy": {"url": url, "model": "m", "api_key_env": "KEY"}, "judge": {"url": url}},
        }
    ).model_dump(mode="json")  # fmt: skip
    same = parse_runner("other:solve", tmp_path, {"concurrency": 5}, recorded)
    assert (same.entrypoint, same.concurrency, same.graded) == ("other:solve", 5, True)
    assert same.model_dump(mode="json")["endpoints"] == recorded["endpoints"]
    assert same.model_aliases == {"*": "policy"}
    wanted = {"endpoints": {"policy": {"url": other}}, "graded": False, "model_aliases": {"gpt-*": "judge"}}
    changed = parse_runner("other:solve", tmp_path, wanted, recorded)
    assert not changed.graded and changed.model_aliases == {"*": "policy", "gpt-*": "judge"}
    assert changed.endpoints["policy"].url == other and changed.endpoints["policy"].api_key_env is None
    assert changed.endpoints["judge"].url == url
    assert parse_runner("other:solve", tmp_path, {}).endpoints == {}
    with_key = parse_runner("other:solve", tmp_path, {"endpoints": {"judge": {"api_key_env": "OTHER"}}}, recorded)
    assert (with_key.endpoints["judge"].url, with_key.endpoints["judge"].api_key_env) == (url, "OTHER")
    for wrong in (3, {"judge": 3}):
        with pytest.raises(UserError, match=r"endpoints"):
            parse_runner("other:solve", tmp_path, {"endpoints": wrong}, recorded)


@pytest.mark.integration
def test_a_function_of_a_notebook_takes_what_it_uses_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("1234")
    fields = runner_fields(notebook_names(NOTEBOOK)["solve"], Path("runs"))
    assert fields["entrypoint"] == "notebook_agent:solve", "errors of the agent name the function"
    assert call_in_worker(fields, {"n": 2}, tmp_path) == 10.0
    assert Path(fields["working_dir"]).stat().st_mode & 0o077 == 0


@pytest.mark.integration
def test_a_function_without_a_name_of_its_own_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    solve = notebook_names("solve = lambda task: 2.0 * task['n']\n")["solve"]
    fields = runner_fields(solve, Path("runs"))
    assert fields["entrypoint"] == "notebook_agent:function"
    assert call_in_worker(fields, {"n": 2}, tmp_path) == 4.0


def test_a_function_of_a_module_is_imported_by_its_name(tmp_path: Path) -> None:
    assert runner_fields(plain.asks, tmp_path) == {
        "entrypoint": "tests.agents.plain:asks",
        "working_dir": str(ROOT),
    }
    assert runner_fields("agent:solve", tmp_path) == {"entrypoint": "agent:solve", "working_dir": str(Path.cwd())}
    assert not list(tmp_path.iterdir())


def test_the_sentence_names_what_cannot_be_sent(tmp_path: Path) -> None:
    names = notebook_names(NOTEBOOK.replace("return operator.mul(number, FACTOR)", "return (number, LOCK)"))
    names["LOCK"] = threading.Lock()
    with pytest.raises(UserError) as raised:
        runner_fields(names["solve"], tmp_path)
    assert str(raised.value).startswith(
        "agent: solve cannot be sent to a process of its own, because of 'LOCK' of 'scale' ("
    )
    assert str(raised.value).endswith("): create that inside solve, or give 'module:function' of a file")


def test_a_closure_over_a_live_object_is_named(tmp_path: Path) -> None:
    def build() -> Any:
        loop = asyncio.Event()
        lock = threading.Lock()

        def solve(task: Any) -> float:
            return float(loop.is_set() and lock.locked())

        return solve

    with pytest.raises(UserError, match="because of 'lock' of 'solve'"):
        runner_fields(build(), tmp_path)


def test_an_agent_that_is_neither_name_nor_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="agent: give 'module:function' or a function, not a int"):
        runner_fields(3, tmp_path)  # type: ignore[arg-type]
