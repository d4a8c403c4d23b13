"""One command in a directory at a time: a second one says who is there, and breaks nothing of it."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lightningbus.bus.directory_lock import (
    DirectoryInUseError,
    announce_reader,
    find_reader,
    is_wanted,
    leave_unused,
    lock_directory,
    lock_for_reading,
    use_reader,
)
from lightningbus.bus.embedded.nats_server import free_port
from lightningbus.bus.errors import BusError
from lightningbus.common.processes.procfs import children_of, is_alive
from lightningbus.run.run_directory.directory import RunDirectory
from tests.commands import environment
from tests.learner.conftest import fitting_model
from tests.lightningbus.test_cli import COMMAND, run, says
from tests.lightningbus.test_train import job
from tests.pausing import stop
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

NAME = "demo"
"""What the demo calls its run; the others are given the same name."""
COMMANDS = {
    "up": ["up", "-c", "up.yaml"],
    "train": ["train", "-c", "train.yaml"],
    "demo": ["demo", "--model", "tiny"],
    "bus": ["bus", "--port", "0", "--dir", f"runs/{NAME}/bus"],
    "store": ["store", "--data-dir", f"runs/{NAME}/store", "--http-port", "0"],
}
PAIRS = [
    (first, second)
    for first in COMMANDS
    for second in COMMANDS
    if {first, second} != {"bus", "store"}  # which share no directory
    and (first, second) not in {("train", "store"), ("demo", "store")}  # see the test of a store that is open
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the run files of all commands, whose runs have one name."""
    directory = tmp_path_factory.mktemp("place")
    fitting_model(directory / "model")
    (directory / "train.yaml").write_text(yaml.safe_dump(job(directory) | {"name": NAME}))
    (directory / "up.yaml").write_text(yaml.safe_dump({"name": NAME, "bus": {"port": 0}, "store": {"http_port": 0}}))
    return directory


@pytest.fixture(scope="module")
def other_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bus for a store by itself."""
    with running([COMMAND, "bus", "--port", "0"], tmp_path_factory.mktemp("bus")) as process:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("bus: ").strip()


@contextmanager
def running(command: list[str], cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    """A command while the block runs; stopped as by Ctrl-C, twice if it must be at once."""
    with (cwd / "errors.log").open("w") as errors:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def wait_until_up(process: "subprocess.Popen[str]", command: str, place: Path) -> None:
    """Until its servers are there."""
    deadline = time.monotonic() + HANG_SECONDS
    endpoints = RunDirectory(place / "runs" / NAME)
    while True:
        assert process.poll() is None, (place / "errors.log").read_text()
        if command == "bus":
            assert process.stdout is not None and process.stdout.readline()
            return
        if command == "store":
            if "SQL at" in (place / "errors.log").read_text():
                return
        elif (actual := endpoints.read_endpoints()) and actual.pid == process.pid and (command != "up" or actual.sql):
            return
        assert time.monotonic() < deadline, f"{command} is not up"
        time.sleep(0.05)


def announced_in(place: Path) -> tuple[int, str] | None:
    """Process and bus of the endpoints that other terminals find."""
    path = place / "runs" / NAME / "endpoints.json"
    if not path.exists():
        return None
    endpoints = json.loads(path.read_text())
    return endpoints["pid"], endpoints["bus"]


@pytest.mark.parametrize(
    "first", ["bus", *(pytest.param(name, marks=pytest.mark.long) for name in ("store", "demo", "train", "up"))]
)
def test_a_second_command_in_a_live_directory_is_refused_and_the_first_goes_on(
    first: str, place: Path, other_bus: str
) -> None:
    """Each pair of commands: the second one says whose directory it is, and moves or writes nothing there."""

    def line(command: str) -> list[str]:
        return [*COMMANDS[command], *(["--bus", other_bus] if command == "store" else [])]

    with running([COMMAND, *line(first)], place) as process:
        wait_until_up(process, first, place)
        directories = {path.name: path.stat().st_ino for path in (place / "runs").iterdir() if not path.is_symlink()}
        announced = announced_in(place)
        for second in (second for item, second in PAIRS if item == first):
            sentence = says(run(*line(second), cwd=place))
            assert "is up (pid" in sentence or "is in use" in sentence, f"{second}: {sentence}"
            if second in ("up", "train", "demo") and first in ("up", "train", "demo"):
                expected = f"run {NAME!r} is up (pid {process.pid}): stop it, or use another name"
                assert sentence == expected, f"{second}: {sentence}"
        assert process.poll() is None
        now = {path.name: path.stat().st_ino for path in (place / "runs").iterdir() if not path.is_symlink()}
        assert now == directories, "no directory is moved or made"
        assert announced_in(place) == announced


@pytest.mark.parametrize("second", [pytest.param("train", marks=pytest.mark.long), "demo"])
def test_a_run_whose_store_is_open_is_not_moved_away(second: str, place: Path, other_bus: str) -> None:
    command = [COMMAND, *COMMANDS["store"], "--bus", other_bus]
    with running(command, place) as process:
        wait_until_up(process, "store", place)
        sentence = says(run(*COMMANDS[second], cwd=place))
        assert "store is in use by another process" in sentence and f"(pid {process.pid})" in sentence
        assert (place / "runs" / NAME / "store").exists()


def test_a_second_up_on_other_ports_leaves_the_endpoints_of_the_first(place: Path) -> None:
    """Free ports are no way around the lock."""
    with running([COMMAND, *COMMANDS["up"]], place) as process:
        wait_until_up(process, "up", place)
        announced = announced_in(place)
        other = {"name": NAME, "bus": {"port": free_port()}, "store": {"http_port": free_port()}}
        (place / "other.yaml").write_text(yaml.safe_dump(other))
        assert f"run {NAME!r} is up (pid {process.pid})" in says(run("up", "-c", "other.yaml", cwd=place))
        assert announced_in(place) == announced


def test_a_killed_bus_leaves_no_lock(tmp_path: Path) -> None:
    """A lock is its process's: kill -9 frees it once the server it started is gone too."""
    command = [COMMAND, "bus", "--port", "0", "--dir", "streams"]
    for _ in range(2):
        with running(command, tmp_path) as process:
            assert process.stdout is not None and "bus: nats://" in process.stdout.readline()
            process.kill()


def test_a_directory_whose_server_outlives_a_killed_bus_is_still_in_use(tmp_path: Path) -> None:
    """Two servers on one directory lose messages, also where the command that started the first is gone."""
    with running([COMMAND, "bus", "--port", "0", "--dir", "streams"], tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline()
        (server,) = children_of(process.pid)
        stop(server)  # it cannot end with its parent
        process.kill()
        process.wait()
    with pytest.raises(DirectoryInUseError), lock_directory(tmp_path / "streams"):
        pass
    os.kill(server, signal.SIGKILL)
    while is_alive(server):
        time.sleep(0.01)
    with lock_directory(tmp_path / "streams"):
        pass


def test_a_lock_file_of_a_process_that_is_gone_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("1")  # of a process that lives, but holds no lock
    with lock_directory(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
        with pytest.raises(DirectoryInUseError, match=rf"\(pid {os.getpid()}\)"), lock_directory(tmp_path):
            pass
    with lock_directory(tmp_path):
        pass


def test_a_lock_on_a_directory_that_was_moved_is_none_on_its_successor(tmp_path: Path) -> None:
    """Who waits at the old file while a fresh run takes the name does not get in by it."""
    directory = tmp_path / "run"
    with lock_directory(directory):
        directory.rename(tmp_path / "aside")
        with lock_directory(directory), (tmp_path / "aside" / ".lock").open() as old, pytest.raises(BlockingIOError):
            fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_reader_leaves_a_directory_to_whoever_locks_it(tmp_path: Path) -> None:
    locked = threading.Event()

    def lock() -> None:
        with lock_directory(tmp_path):
            locked.set()

    with lock_for_reading(tmp_path):
        assert not is_wanted(tmp_path)
        with pytest.raises(DirectoryInUseError, match=rf"\(pid {os.getpid()}\)"), lock_for_reading(tmp_path):
            pass
        writer = threading.Thread(target=lock)
        writer.start()
        while not is_wanted(tmp_path):
            time.sleep(0.01)
        assert not locked.is_set()
    assert locked.wait(HANG_SECONDS)
    writer.join()
    with lock_directory(tmp_path), pytest.raises(DirectoryInUseError), lock_for_reading(tmp_path):
        pass


def test_a_reader_is_found_by_all_and_stays_while_one_uses_it(tmp_path: Path) -> None:
    assert find_reader(tmp_path) == "" and find_reader(tmp_path / "none") == ""
    with lock_for_reading(tmp_path):
        assert find_reader(tmp_path) == "", "it has an address once it answers"
        announce_reader(tmp_path, "http://127.0.0.1:1")
        for leave in (use_reader(tmp_path), use_reader(tmp_path)):
            assert find_reader(tmp_path) == "http://127.0.0.1:1" and not leave_unused(tmp_path, 0)
            leave()
        assert leave_unused(tmp_path, 0)
        assert find_reader(tmp_path) == "", "nobody finds one that leaves"
    with pytest.raises(BusError, match="cannot be used"):
        use_reader(tmp_path / "none")


def test_a_reader_that_was_used_a_moment_ago_stays(tmp_path: Path) -> None:
    with lock_for_reading(tmp_path):
        use_reader(tmp_path)()
        assert not leave_unused(tmp_path, 60)
        os.utime(tmp_path / ".readers", (0, 0))
        assert leave_unused(tmp_path, 60)


def test_the_address_of_a_killed_reader_is_none(tmp_path: Path) -> None:
    (tmp_path / ".reader").write_text(f"{os.getpid()}\nhttp://127.0.0.1:1\n")  # its id is another process's by now
    assert find_reader(tmp_path) == ""
    with lock_for_reading(tmp_path):
        (tmp_path / ".reader").write_text("999999999\nhttp://127.0.0.1:1\n")
        assert find_reader(tmp_path) == "", "of the one before, whose file is not written anew yet"
        (tmp_path / ".reader").write_text(f"{os.getpid()}\nhttp://127.0.0.1:1")
        assert find_reader(tmp_path) == "", "half a line is no address"


def test_the_reader_of_a_directory_is_none_of_its_copy(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with lock_for_reading(tmp_path / "run"):
        announce_reader(tmp_path / "run", "http://127.0.0.1:1")
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        assert find_reader(tmp_path / "run") == "http://127.0.0.1:1"
        assert find_reader(tmp_path / "copy") == ""


def test_a_probe_keeps_out_no_other_probe(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        assert is_wanted(tmp_path)
    with (tmp_path / ".lock").open() as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)  # as `is_wanted` of another process does for an instant
        assert not is_wanted(tmp_path)
        with lock_for_reading(tmp_path):
            pass


def test_a_check_makes_no_file_in_a_directory_that_is_being_removed(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    assert not is_wanted(directory) and leave_unused(directory, 0) and not list(directory.iterdir())
    directory.rmdir()
    assert is_wanted(directory) and leave_unused(directory, 0) and not directory.exists()


def test_a_reader_that_does_not_leave_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightningbus.bus.directory_lock.READER_SECONDS", 0.1)
    with (
        lock_for_reading(tmp_path),
        pytest.raises(DirectoryInUseError, match=rf"\(pid {os.getpid()}\)"),
        lock_directory(tmp_path),
    ):
        pass


@pytest.mark.parametrize("kind", ["run", "bus"])
def test_a_run_directory_is_its_owners_alone(tmp_path: Path, kind: str) -> None:
    """Whatever the umask says, and also where it was there before."""
    before = os.umask(0o022)
    try:
        (tmp_path / "runs" / "old").mkdir(parents=True)
        for path in (tmp_path / "runs" / "old", tmp_path / "runs" / "new"):
            if kind == "run":
                with RunDirectory(path).lock():
                    assert path.stat().st_mode & 0o777 == 0o700
            else:
                with lock_directory(path):
                    assert path.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
