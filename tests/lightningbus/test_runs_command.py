"""``lightningbus runs``, as a user types it, in a pipe and in a terminal."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import lightningbus as lb
from lightningbus.bus.directory_lock import lock_directory
from lightningbus.run.run_directory.directory import RunDirectory
from tests import seed_store
from tests.commands import environment
from tests.lightningbus.test_cli import COMMAND, run, says
from tests.polling import HANG_SECONDS
from tests.store.conftest import prepared

pytestmark = pytest.mark.integration

HOSTILE = "\x1b[2J<b>"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the runs ``a`` and ``b``; the latter is the latest."""
    for name in "ab":
        RunDirectory(tmp_path / "runs" / name).create()
    return tmp_path


def in_terminal(*arguments: str, cwd: Path, typed: str = "") -> tuple[int, str]:
    """The exit code of a command in a terminal of 120 columns, and what it prints."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [COMMAND, *arguments], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environment(), "COLUMNS": "120", "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, typed.encode())
    output = b""
    try:
        while part := os.read(ours, 4096):
            output += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(HANG_SECONDS), output.decode()


def listed(*options: str, cwd: Path) -> dict[str, dict[str, object]]:
    done = run("runs", "list", *options, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_a_pipe_gets_a_json_object_per_line_and_a_terminal_a_table(place: Path) -> None:
    assert run("runs", "tag", "a", "+good", "new", cwd=place).stdout == "run a has the tags good, new\n"
    assert run("runs", "tag", "a", "-new", cwd=place).stdout == "run a has the tags good\n"
    assert run("runs", "tag", "a", "best", "--remove", "good", cwd=place).stdout == "run a has the tags best\n"
    assert run("runs", "note", "a", HOSTILE, cwd=place).stdout == "run a has the note: ␛[2J<b>\n"
    rows = listed(cwd=place)
    assert list(rows) == ["b", "a"] or rows["a"]["started_at"] == rows["b"]["started_at"]
    assert (rows["a"]["tags"], rows["a"]["note"], rows["a"]["state"]) == (["best"], HOSTILE, "ended")
    assert list(listed("--tag", "best", cwd=place)) == ["a"]
    code, table = in_terminal("runs", "list", "--tag", "best", cwd=place)
    assert code == 0 and "held-out" in table and "best" in table and "\x1b[2J" not in table and "␛[2J<b>" in table
    assert run("runs", "note", "a", "", cwd=place).stdout == "run a has no note\n"
    assert "no run in elsewhere to list" in in_terminal("runs", "list", "--runs", "elsewhere", cwd=place)[1]


def test_an_archived_run_is_left_out_until_it_is_listed_again(place: Path) -> None:
    assert run("runs", "archive", "latest", cwd=place).stdout == "run b is archived\n"
    assert list(listed(cwd=place)) == ["a"] and set(listed("--archived", cwd=place)) == {"a", "b"}
    assert run("runs", "archive", "b", "--undo", cwd=place).stdout == "run b is listed again\n"
    assert set(listed(cwd=place)) == {"a", "b"}


def test_wrong_input_ends_in_one_sentence(place: Path) -> None:
    (place / "runs" / "notes").mkdir()
    for arguments, sentence in (
        (("tag", "c", "x"), "there is no run 'c' in runs; known are a, b"),
        (("tag", "a"), "give tags: `+good` adds one, and `-bad` removes one"),
        (("tag", "a", "-bad"), "there is no tag 'bad' to remove; the run has none"),
        (("note", "../a", "x"), "there is no run '../a' in runs"),
        (("rename", "a", "b"), "runs/b is there already"),
        (("archive", "notes"), "there is no run 'notes' in runs"),
        (("delete", "notes", "--yes"), "there is no run 'notes' in runs"),
        (("delete", "a"), "there is no terminal to ask in: give --yes to delete the run"),
    ):
        assert sentence in says(run("runs", *arguments, cwd=place)), arguments


def test_deletion_asks_in_a_terminal_and_says_what_it_frees(place: Path) -> None:
    (place / "runs" / "a" / "work" / "large").write_bytes(os.urandom(1_500_000))
    (place / "run.yaml").write_text("name: a\n")
    for typed in ("n\n", "\n"):
        code, output = in_terminal("runs", "delete", "a", cwd=place, typed=typed)
        assert code == 1 and "Delete runs/a, which frees 1.5 MB? [y/N]" in output
        assert "run.yaml names this run" in output and (place / "runs" / "a").exists()
    code, output = in_terminal("runs", "delete", "a", cwd=place, typed="y\n")
    assert code == 0 and "run a is deleted: 1.5 MB are free" in output
    assert list(listed(cwd=place)) == ["b"]
    assert run("runs", "delete", "latest", "--yes", cwd=place).returncode == 0
    assert listed(cwd=place) == {} and not (place / "runs" / "latest").is_symlink()


def test_a_run_that_is_up_is_neither_renamed_nor_deleted(place: Path) -> None:
    with lock_directory(place / "runs" / "a"):
        for command in (("rename", "a", "c"), ("delete", "a", "--yes")):
            assert says(run("runs", *command, cwd=place)) == f"run 'a' is up (pid {os.getpid()}): stop it first"
        assert listed(cwd=place)["a"]["state"] == "running"
        assert run("runs", "tag", "a", "slow", cwd=place).returncode == 0, "a run that is up can be labelled"


def test_a_renamed_run_is_asked_by_its_new_name(place: Path) -> None:
    directory = RunDirectory(place / "runs" / "first").create()
    directory.store.rmdir()
    with prepared(directory.store) as store:
        seed_store.insert(store.sql, seed_store.run("first", steps=2, groups=2))
    (place / "run.yaml").write_text("name: first\n")
    assert run("runs", "rename", "first", "best", cwd=place).stdout.splitlines() == [
        "run first is best now, and --run best finds its data",
        "SQL finds its rows by run_id = 'first'; it goes on only under that name",
        "run.yaml has the old name",
    ]
    run("runs", "tag", "best", "good", cwd=place)
    run("runs", "note", "best", "the one", cwd=place)
    done = run("report", "outcomes", "--run", "best", "--json", cwd=place)
    assert {row["run_id"] for row in json.loads(done.stdout)} == {"first"}, done.stderr
    with lb.connect("best", runs=place / "runs") as session:
        (row,) = session.runs()
        assert (row["run_id"], row["tags"], row["note"]) == ("first", ["good"], "the one")
        assert session.rollouts() and session.reward_curve().run == "first"


def test_a_copied_run_is_asked_where_it_lies(place: Path) -> None:
    directory = RunDirectory(place / "runs" / "first").create()
    directory.store.rmdir()
    with prepared(directory.store) as store:
        seed_store.insert(store.sql, seed_store.run("first", steps=2, groups=2))
    (directory.path / "work" / "learner.json").write_text('{"run": "first"}')
    elsewhere = place / "elsewhere"
    shutil.copytree(directory.path, elsewhere / "copy", symlinks=True)
    done = run("report", "outcomes", "--run", "copy", "--json", cwd=elsewhere)
    assert {row["run_id"] for row in json.loads(done.stdout)} == {"first"}, done.stderr
    done = run("report", "--html", "all.html", "--run", elsewhere / "copy", cwd=elsewhere)
    assert done.stdout == "all.html\n", done.stderr
