"""Tasks in Harbor's format, in workspaces: what runs, what the model can reach, and what is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.run.projects.harbor_trials import HarborTrials
from tests.environments.conftest import play, write_environment
from tests.lightningbus.test_cli import run, says
from tests.runners.test_containers import docker

__all__ = ["docker"]
HARBOR = Path(os.environ.get("HARBOR_PYTHON", "/nowhere"))
"""The interpreter of an environment with harbor 0.26, whose own parser then reads the tasks of these tests."""
FILES = {
    "task.toml": '[task]\nname = "example/count-words"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 30.0\n',
    "instruction.md": "<!-- canary 42 -->\nWrite the number of words of text.txt to count.txt.\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nENV GREETING=hello\nCOPY text.txt /app/\n",
    "environment/text.txt": "one two three four\n",
    "tests/test.sh": '[ "$(cat count.txt)" = 4 ] && reward=1 || reward=0\necho $reward > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "wc -w < text.txt > count.txt\n",
}

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")


def make_task(directory: Path, **changes: str) -> Path:
    """A task's directory; a change is a file's new text, by its path with ``__`` for ``/``."""
    for name, text in (FILES | {name.replace("__", "/"): text for name, text in changes.items()}).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def bash(command: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"I run this.\n```bash\n{command}\n```"}


ANSWERS = [bash("echo $GREETING; wc -w < text.txt > count.txt"), {"role": "assistant", "content": "It is done."}]


async def check_played(bus: Bus, directory: Path, *arguments: str) -> None:
    """Both tasks to train on are solved by the commands of a scripted model."""
    for name in ("a", "b", "c"):
        make_task(directory / "tasks" / name)
    seen: list[str] = []

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(messages[-1]["content"])
        return ANSWERS[len(messages) > 2]

    words = [word for argument in arguments for word in ("--arg", argument)]
    written = write_environment(f"harbor:{directory / 'tasks'}", Path(sys.executable), directory / "out", *words)
    assert written.startswith("2 tasks and 1 held-out ones in ")
    results = await play(bus, directory / "out", answer)
    assert [(result["rewards"], result["num_calls"], result["commands"]) for result in results] == [
        ({"reward": 1.0}, 2, 1)
    ] * 2
    assert set(seen) == {"Write the number of words of text.txt to count.txt.", "hello\n[status 0]"}


async def test_commands_are_run_and_the_tasks_own_tests_give_the_reward(bus: Bus, tmp_path: Path) -> None:
    await check_played(bus, tmp_path)


async def test_a_container_has_the_files_and_another_one_the_tests(
    bus: Bus, tmp_path: Path, docker: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{docker['docker_socket']}")
    await check_played(bus, tmp_path, "provider=docker", f"image={docker['image']}")


async def test_an_image_may_have_all_that_a_task_needs(
    bus: Bus, tmp_path: Path, docker: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{docker['docker_socket']}")
    changes = {
        "environment__Dockerfile": "FROM ubuntu:24.04\nRUN apt-get update\n",
        "task.toml": '[environment]\nworkdir = "/root"\n',
        "solution__solve.sh": "echo 4 > count.txt\n",
    }
    for name in ("a", "b"):
        make_task(tmp_path / "tasks" / name, **changes)
    options = ["--arg", "provider=docker", "--arg", "image=here-{name}:1"]
    write_environment(f"harbor:{tmp_path / 'tasks'}", Path(sys.executable), tmp_path / "out", *options)
    (result,) = await play(
        bus, tmp_path / "out", lambda messages: bash("pwd; echo 4 > count.txt") if len(messages) == 2 else ANSWERS[1]
    )
    assert result["rewards"] == {"reward": 1.0}
    assert "image: here-a:1" in (tmp_path / "out" / "run.yaml").read_text(), "a runner tries one at its start"


def test_a_provider_that_is_not_there_is_no_fault_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        make_task(tmp_path / "tasks" / name)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'nowhere'}")
    arguments = ("env", f"harbor:{tmp_path / 'tasks'}", "--out", tmp_path / "out", "--arg")
    assert "nowhere" in says(run(*arguments, "provider=docker", "--arg", "skip=true"))
    assert says(run(*arguments, "provider=process")).startswith("--arg: provider: ")
    assert says(run(*arguments, "prompt=x")).startswith("--arg: prompt: ")


async def test_a_model_sees_neither_tests_nor_host_and_cannot_write_its_reward(bus: Bus, tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_task(tmp_path / "tasks" / name)
    seen: list[str] = []
    looks = f"ls /tests {tmp_path}/tasks; ls {tmp_path}/out/workspaces; wc -l < /proc/net/route; ls -a /workspace"
    looks += "; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(messages[-1]["content"])
        return bash(looks) if len(messages) == 2 else ANSWERS[1]

    write_environment(f"harbor:{tmp_path / 'tasks'}", Path(sys.executable), tmp_path / "out")
    (result,) = await play(bus, tmp_path / "out", answer)
    assert result["reward"] == 0.0
    assert seen[1].count("No such file or directory") == 2 and seen[1].endswith("\n1\n.\n..\napp\n[status 0]"), seen[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment__Dockerfile": "FROM ubuntu:24.04\nRUN apt-get update\n"}, "does more than copy files: RUN apt"),
        ({"environment__Dockerfile": "FROM a AS b\nFROM c\n"}, "does more than copy files: FROM a AS b"),
        ({"environment__Dockerfile": "FROM a\nCOPY text.txt /usr/bin/\n"}, "its Dockerfile writes to /usr/bin"),
        ({"environment__docker-compose.yaml": "services: {}\n"}, "it has docker-compose.yaml"),
        ({"task.toml": "[environment]\ngpus = 1\n"}, "task.toml sets environment.gpus"),
        ({"task.toml": '[verifier.env]\nKEY = "${KEY}"\n'}, "the variable KEY is read from the host"),
        (
            {"tests__test.sh": "uvx pytest\n"},
            "it wrote neither reward.json nor reward.txt to /logs/verifier (status 127",
        ),
        ({"solution__solve.sh": "no-such-program\n"}, "its own solution has reward 0 here, as without it (status 127"),
    ],
)
def test_a_task_that_no_workspace_can_have_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    for name in ("a", "b"):
        make_task(tmp_path / "tasks" / name)
    make_task(tmp_path / "tasks" / "c", **changes)
    arguments = ("env", f"harbor:{tmp_path / 'tasks'}", "--out", tmp_path / "out")
    done = run(*arguments)
    row, sentence = done.stderr.splitlines()
    assert row.startswith("c  ") and reason in row
    assert sentence == "lightningbus: 1 of the tasks cannot run by bubblewrap: --arg skip=true leaves them out"
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    skipped = run(*arguments, "--arg", "skip=true")
    assert skipped.stdout.startswith("1 tasks and 1 held-out ones in ") and skipped.stderr.splitlines() == [row]
    assert not list(tmp_path.glob(".out*")), "nothing is left beside the directory"


def test_a_command_that_was_stopped_goes_on_with_the_tasks_that_it_has_not_tried(tmp_path: Path) -> None:
    """The trials of an earlier command are on file; a changed task is tried again."""
    folders = [make_task(tmp_path / "tasks" / name) for name in ("a", "b", "c")]
    (folders[2] / "tests" / "test.sh").write_text("uvx pytest\n")
    trials = HarborTrials(tmp_path / "trials.json", "{}")
    trials.record(folders[0], "")
    trials.record(folders[2], "no uvx")
    again = HarborTrials(tmp_path / "trials.json", "{}")
    assert [again.find(folder) for folder in folders] == ["", None, "no uvx"]
    assert HarborTrials(tmp_path / "trials.json", '{"provider": "docker"}').find(folders[0]) is None
    (folders[0] / "instruction.md").write_text("Another task.")
    assert again.find(folders[0]) is None


@pytest.mark.skipif(not HARBOR.exists(), reason="HARBOR_PYTHON")
def test_harbor_itself_reads_these_tasks(tmp_path: Path) -> None:
    code = "import sys; from harbor.models.task.task import Task; print(Task(sys.argv[1]).name)"
    done = subprocess.run([HARBOR, "-c", code, make_task(tmp_path / "a")], capture_output=True, text=True, check=True)
    assert done.stdout == "example/count-words\n"
