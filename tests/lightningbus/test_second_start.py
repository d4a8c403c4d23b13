"""A start beside a run that is up, and questions about runs: what is refused touches nothing of the run that is up."""

import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightningbus.cli.app import COMMANDS
from lightningbus.run.run_directory.directory import RunDirectory
from tests import seed_store
from tests.commands import environment
from tests.learner.conftest import fitting_model
from tests.lightningbus.test_cli import COMMAND, run, says
from tests.lightningbus.test_train import job
from tests.polling import until
from tests.store.conftest import prepared

pytestmark = pytest.mark.integration

FREE = {"bus": {"port": 0}, "store": {"http_port": 0}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in which run ``live`` is up, and run ``ended`` has ended."""
    place = tmp_path_factory.mktemp("place")
    fitting_model(place / "model")
    (place / "grader.yaml").write_text(yaml.safe_dump({"graders": {"right": {"function": "rewards:is_right"}}}))
    ended = RunDirectory(place / "runs" / "ended").create()
    ended.store.rmdir()
    with prepared(ended.store) as store:
        seed_store.insert(store.sql, seed_store.run("ended", steps=1, groups=1))
    with running(place, "live", FREE):
        yield place


@contextmanager
def running(place: Path, name: str, settings: dict[str, Any]) -> Iterator["subprocess.Popen[bytes]"]:
    """`lightningbus up` while the block runs."""
    (place / f"{name}.yaml").write_text(yaml.safe_dump(settings | {"name": name}))
    with (place / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([COMMAND, "up", "-c", f"{name}.yaml"], cwd=place, stderr=log, env=environment())
    try:
        run_directory = RunDirectory(place / "runs" / name)
        until(lambda: bool((endpoints := run_directory.read_endpoints()) and endpoints.sql), True, 60)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def state_of(place: Path) -> dict[str, object]:
    """What a second start has to leave as it is."""
    live = place / "runs" / "live"
    return {
        "latest": str((place / "runs" / "latest").readlink()),
        "endpoints": (live / "endpoints.json").read_bytes(),
        "files": sorted(path.name for path in live.iterdir()),
        "inode": live.stat().st_ino,
    }


def up_with(**sections: Any) -> dict[str, Any]:
    return {**FREE, "name": "second", **sections}


Fields = dict[str, Any]


def part(trained: Fields, section: str, **changes: Any) -> Fields:
    """A section of a training job with other settings, as that section of another run."""
    value = trained[section]
    return {section: [value[0] | changes] if isinstance(value, list) else value | changes}


REASONS: dict[str, tuple[str, Callable[[Fields, int], Fields]]] = {
    "name in use": ("up", lambda trained, taken: up_with(name="live")),
    "name in use by train": ("train", lambda trained, taken: trained | {"name": "live"}),
    "port of the bus": ("up", lambda trained, taken: up_with(bus={"port": taken})),
    "port of the bus, train": ("train", lambda trained, taken: trained | {"bus": {"port": taken}}),
    "port of the store": ("up", lambda trained, taken: up_with(store={"http_port": taken})),
    "port of a node": ("up", lambda trained, taken: up_with(**part(trained, "inference", port=taken))),
    "probe": ("up", lambda trained, taken: up_with(store={"http_port": 0, "health_address": f"127.0.0.1:{taken}"})),
    "settings": ("up", lambda trained, taken: up_with(store={"http_prot": 1})),
    "settings, train": ("train", lambda trained, taken: trained | part(trained, "learner", max_stepz=1)),
    "store in use": ("up", lambda trained, taken: up_with(store={"http_port": 0, "data_dir": "runs/live/store"})),
    "model of a node": ("up", lambda trained, taken: up_with(**part(trained, "inference", model_path="nowhere"))),
    "model of a learner": ("up", lambda trained, taken: up_with(**part(trained, "learner", model_path="nowhere"))),
    "tasks of a learner": ("up", lambda trained, taken: up_with(**part(trained, "learner", tasks="nowhere.jsonl"))),
    "model, train": ("train", lambda trained, taken: trained | part(trained, "learner", model_path="nowhere")),
    "tasks, train": ("train", lambda trained, taken: trained | part(trained, "learner", tasks="nowhere.jsonl")),
    "agent": ("train", lambda trained, taken: trained | {"runners": [{"entrypoint": "nowhere:solve"}]}),
}
"""Starts that are refused: the command, and its run file by a training job's settings and a port that is taken."""
OFTEN = {"name in use", "port of the bus", "port of the store", "settings", "store in use", "model, train", "agent"}
"""Starts that `make test` tries: one of each place in which a start is refused."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "reason", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in REASONS]
)
def test_a_start_that_is_refused_leaves_the_run_that_is_up_alone(reason: str, place: Path) -> None:
    with ExitStack() as exits:
        taken = exits.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        command, settings_for = REASONS[reason]
        settings = settings_for(job(place) | {"name": "second"}, taken)
        (place / "second.yaml").write_text(yaml.safe_dump(settings))
        before = state_of(place)
        refused = run(command, "-c", "second.yaml", cwd=place, timeout=120)
        assert refused.returncode == 2, refused.stderr
        assert "Traceback" not in refused.stderr or reason == "agent", refused.stderr  # where its own module fails
        assert refused.stderr.splitlines()[-1].startswith("lightningbus: "), refused.stderr
    assert state_of(place) == before


def test_a_second_run_is_the_latest_once_its_roles_have_started(place: Path) -> None:
    with running(place, "beside", FREE):
        until(lambda: str((place / "runs" / "latest").readlink()), "beside", 30)
    RunDirectory(place / "runs" / "live").make_latest()


def test_a_role_that_ends_with_2_ends_up_by_its_sentence_alone(place: Path) -> None:
    settings = up_with(name="broken", learner=job(place)["learner"] | {"tasks": "nowhere.jsonl"})
    (place / "broken.yaml").write_text(yaml.safe_dump(settings))
    ended = run("up", "-c", "broken.yaml", cwd=place)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr and "never retrieved" not in ended.stderr
    assert "lightningbus: learner ended with 2: nowhere.jsonl cannot be read" in ended.stderr.splitlines()[-1]


QUESTIONS: dict[str, tuple[str, ...]] = {
    "query": ("SELECT 1",),
    "report": ("outcomes",),
    "audit": (),
    "rollouts show": ("ended-0",),
    "rollouts tail": ("-n", "1"),
    "rollouts export": ("best.jsonl",),
    "steps replay": ("--step", "1"),
    "sft": (),
    "dpo": (),
    "evaluate": ("agent:solve", "heldout.jsonl"),
    "regrade": ("grader.yaml", "--name", "strict"),
    "weights list": (),
    "weights show": ("0",),
    "weights export": ("there",),
    "weights pin": ("0",),
    "weights unpin": (),
    "weights revoke": ("0", "--reason", "worse"),
    "weights approve": ("0",),
    "prompts list": (),
    "prompts show": ("solver",),
}
"""Arguments of each command that asks a run."""
MAKES_ITS_RUN = {"publish", "learner"}
"""Commands whose ``--run`` is a name that they give."""


def list_commands_of_runs() -> list[str]:
    """Every command with ``--run``."""
    names = []
    for row in COMMANDS:
        command = row.load()
        for name, each in getattr(command, "commands", {"": command}).items():
            if any("--run" in parameter.opts for parameter in each.params):
                names.append(f"{row.name} {name}".strip())
    return names


def test_every_command_that_asks_a_run_is_tried_below() -> None:
    assert set(list_commands_of_runs()) - MAKES_ITS_RUN == set(QUESTIONS)


@pytest.mark.parametrize("name", ["nosuch", pytest.param("runs/nosuch", marks=pytest.mark.long)])
@pytest.mark.parametrize("command", QUESTIONS)
def test_a_run_that_is_not_there_is_no_question_to_the_one_that_is_up(command: str, name: str, place: Path) -> None:
    sentence = says(run(*command.split(), *QUESTIONS[command], "--run", name, cwd=place))
    assert f"there is no run {name!r}" in sentence, sentence


@pytest.mark.parametrize("command", [("query", "SELECT 1"), ("report", "outcomes"), ("rollouts", "tail", "-n", "1")])
def test_a_run_without_a_store_is_not_answered_for_by_another(command: tuple[str, ...], place: Path) -> None:
    """A start that was refused may have left its directory."""
    (place / "runs" / "refused" / "store").mkdir(parents=True, exist_ok=True)
    assert "run 'refused'" in says(run(*command, "--run", "refused", cwd=place))


def test_a_page_of_all_reports_is_of_a_run_that_is_there(place: Path) -> None:
    assert "there is no run 'nosuch'" in says(run("report", "--html", "out.html", "--run", "nosuch", cwd=place))
