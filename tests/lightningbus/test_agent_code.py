"""Digests of the code that a run's agents, rewards and own functions are made of."""

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from lightningbus.run.errors import UserError
from lightningbus.run.results.agent_code import RECORD, describe_code, list_changes, read_code, record_code
from lightningbus.runners.settings import RunnerSettings


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_has_what_an_agent_imports_from_its_own_directory_and_runs_none_of_it(project: Path) -> None:
    files = {
        "agent.py": write(
            project / "agent.py", "import json, helper\nfrom tools import calculator\nraise SystemExit(1)"
        ),
        "helper.py": write(project / "helper.py", "import agent"),
        "tools/__init__.py": write(project / "tools/__init__.py", ""),
        "tools/calculator.py": write(project / "tools/calculator.py", "x = 1"),
        "tools/loaded/later.py": write(project / "tools/loaded/later.py", "name = 'read by a path'"),
        "rewards.py": write(project / "rewards.py", "from . import nothing"),
    }
    write(project / "unused.py", "")
    runner = RunnerSettings(entrypoint="agent:solve", reward_fn="rewards:score")
    assert describe_code([runner]) == files


def test_directories_without_init_and_relative_imports_are_followed(project: Path) -> None:
    files = {
        "agent.py": write(project / "agent.py", "def solve():\n    from lib.deep import one"),
        "lib/deep/one.py": write(
            project / "lib/deep/one.py", "from . import two\nfrom ..other import x\nfrom ... import y"
        ),
        "lib/deep/two.py": write(project / "lib/deep/two.py", "import torch, os.path"),
        "lib/other.py": write(project / "lib/other.py", "x = 1"),
    }
    write(project / "lib/unused.py", "")
    assert describe_code([RunnerSettings(entrypoint="agent:solve")]) == files


def test_files_of_another_directory_have_their_path(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    digest = write(elsewhere / "agent.py", "x = 1")
    write(project / "agent.py", "another one")
    runner = RunnerSettings(entrypoint="agent:solve", working_dir=elsewhere)
    assert describe_code([runner]) == {str(elsewhere / "agent.py"): digest}


def test_a_program_and_functions_of_a_learner_are_code_too(project: Path) -> None:
    script = write(project / "agent.sh", "echo 1")
    credit = write(project / "credit.py", "def by_call(): ...")
    learner = {"credit": "credit:by_call", "model_path": "models:x", "lr": 1.0, "parts": [{"name": "identical"}]}
    code = describe_code([RunnerSettings(command=["sh", "agent.sh"])], [learner])
    assert code == {"agent.sh": script, "credit.py": credit}


def test_an_installed_package_has_its_version_in_the_runners_own_interpreter(project: Path) -> None:
    assert describe_code([RunnerSettings(entrypoint="msgpack.fallback:solve")]) == {"msgpack": version("msgpack")}
    other = RunnerSettings(entrypoint="msgpack.fallback:solve", python_executable=Path(sys.executable))
    assert describe_code([other]) == {}


def test_an_environment_is_its_settings_and_its_module(project: Path) -> None:
    settings = json.dumps({"adapter": "verifiers_adapter", "name": "me/my-sums", "arguments": {}})
    files = {"environment.json": write(project / "environment.json", settings)}
    files["mine/my_sums.py"] = write(project / "mine/my_sums.py", "def load_environment(): ...")
    write(project / "lib/site-packages/absent.py", "")
    other, variables = Path(sys.executable), ["PYTHONPATH=mine:none:lib/site-packages", "HOME"]
    runner = RunnerSettings(entrypoint="absent:rollout", env=variables, python_executable=other)
    assert describe_code([runner]) == files


def test_code_that_cannot_be_parsed_has_its_digest(project: Path) -> None:
    digest = write(project / "agent.py", "def solve(:")
    assert describe_code([RunnerSettings(entrypoint="agent:solve")]) == {"agent.py": digest}


def test_the_record_tells_what_changed(tmp_path: Path) -> None:
    assert read_code(tmp_path) == {}
    record_code(tmp_path, {"agent.py": "1", "helper.py": "2", "same.py": "3"})
    now = {"agent.py": "9", "same.py": "3", "new.py": "4"}
    assert list_changes(read_code(tmp_path), now) == ["agent.py", "helper.py", "new.py"]
    (tmp_path / RECORD).write_text("[1")
    with pytest.raises(UserError, match=r"code.json cannot be read .*: delete it to go without it"):
        read_code(tmp_path)
