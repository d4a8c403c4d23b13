"""A run that is named is asked in its own store, though another run is the latest."""

import json
import shutil
from pathlib import Path

import pytest

from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.lookup import find_run, find_run_id, find_run_names
from tests import seed_store
from tests.lightningbus.test_cli import run as run_command
from tests.lightningbus.test_cli import says
from tests.store.conftest import prepared

COUNT = "SELECT DISTINCT run_id FROM rollouts"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the runs ``first`` and ``second`` have ended."""
    place = tmp_path_factory.mktemp("place")
    for name, num_groups in (("first", 2), ("second", 3)):
        directory = RunDirectory(place / "runs" / name).create()
        directory.store.rmdir()
        with prepared(directory.store) as store:
            seed_store.insert(store.sql, seed_store.run(name, steps=2, groups=num_groups))
            seed_store.insert(store.sql, seed_store.evaluations(name, (0, 2), num_tasks=4), first=50_000)
    return place


@pytest.mark.integration
@pytest.mark.parametrize("name", ["first", "runs/first", "second", ""])
def test_a_run_is_asked_by_its_name_or_its_directory(name: str, place: Path) -> None:
    options = ("--run", name) if name else ()
    for command in (("query", COUNT), ("report", "outcomes")):
        result = run_command(*command, "--json", *options, cwd=place)
        assert {row["run_id"] for row in json.loads(result.stdout)} == {Path(name or "second").name}


@pytest.mark.integration
def test_a_run_that_is_not_there_is_said_with_those_that_are(place: Path) -> None:
    assert "there is no run 'frist' here or in the store of run second; did you mean 'first'?" in says(
        run_command("report", "outcomes", "--run", "frist", cwd=place)
    )


@pytest.mark.integration
def test_a_store_that_was_copied_alone_is_asked_for_the_run_that_it_has(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs" / "first" / "store", tmp_path / "runs" / "copy" / "store", symlinks=True)
    for command in (("report", "outcomes"), ("report", "compare", "copy", "copy")):
        options = ("--run", "copy") if "compare" not in command else ()
        result = run_command(*command, *options, "--json", cwd=tmp_path)
        assert result.returncode == 0 and json.loads(result.stdout), result.stderr
    page = run_command("report", "--html", "report.html", "--run", "copy", cwd=tmp_path)
    assert page.stdout == "report.html\n", page.stderr


@pytest.mark.integration
def test_a_copied_store_of_several_runs_is_no_hint_at_its_own_name(tmp_path: Path) -> None:
    with prepared(tmp_path / "runs" / "copy" / "store") as store:
        for name in ("first", "second"):
            seed_store.insert(store.sql, seed_store.run(name, steps=1, groups=1))
    sentence = says(run_command("report", "outcomes", "--run", "copy", cwd=tmp_path))
    assert "there is no run 'copy' in the store; known are first, second" in sentence


@pytest.mark.integration
def test_two_runs_are_compared_each_in_its_own_store(place: Path) -> None:
    counts = {}
    for name in ("first", "second"):
        answer = run_command(
            "query", "SELECT count() FROM rollouts WHERE mode = 'train'", "--run", name, "--csv", cwd=place
        )
        counts[name] = int(answer.stdout.splitlines()[1])
    assert 0 < counts["first"] < counts["second"]
    short = run_command("report", "compare", "first", "runs/second", "--json", cwd=place)
    rows = {row["figure"]: row for row in json.loads(short.stdout)}
    assert [rows["rollouts"][column] for column in ("run_id", "a", "b", "difference")] == [
        "first : runs/second", counts["first"], counts["second"], counts["second"] - counts["first"],
    ]  # fmt: skip
    assert rows["mean reward"]["a"] is not None and rows["mean reward"]["b"] is not None
    long = ("--run", "first", "--param", "a=first", "--param", "b=second", "--json")
    named = json.loads(run_command("report", "compare", *long, cwd=place).stdout)
    for row, expected in zip(named, rows.values(), strict=True):  # sums are of several threads, in any order
        assert row == pytest.approx(expected | {"run_id": row["run_id"]})


@pytest.mark.integration
def test_the_only_parameter_of_a_report_needs_no_name(place: Path) -> None:
    newest = "SELECT rollout_id FROM rollouts WHERE mode = 'train' AND num_calls > 0 LIMIT 1"
    newest_rollout = run_command("query", newest, "--run", "first", "--csv", cwd=place)
    rollout_id = newest_rollout.stdout.splitlines()[1].strip('"')
    credit = run_command("report", "token_credit", rollout_id, "--run", "first", "--json", cwd=place)
    assert {row["rollout_id"] for row in json.loads(credit.stdout)} == {rollout_id}
    sentence = "report token_credit takes only rollout_id without --param, not 'two'"
    assert sentence in says(run_command("report", "token_credit", "one", "two", cwd=place))


@pytest.mark.integration
@pytest.mark.parametrize(
    "words, sentence",
    [
        (("first", "secnd"), "there is no run 'secnd' here or in the store of run second; did you mean 'second'?"),
        (("first", "second", "--param", "version_b=9"), "run 'second' has no rollouts with mode=train, version_b=9"),
        (
            ("first", "second", "--param", "reward=corect"),
            "run 'first' has no reward 'corect': did you mean 'correct'?",
        ),
        (
            ("first", "second", "--param", "mode=eval"),
            "no rollouts with mode=eval: choose one by --param evaluation=NAME; there are greedy, sampled",
        ),
        (("first", "second", "--run", "third"), "--run: report compare is about first and second: leave --run out"),
        (("first", "second", "third"), "report compare takes only a and b without --param, not 'third'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_cannot_be_compared_is_named_and_no_blank_column(
    words: tuple[str, ...], sentence: str, place: Path
) -> None:
    assert sentence in says(run_command("report", "compare", *words, cwd=place))


def test_a_directory_that_was_moved_aside_has_its_runs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    RunDirectory(Path("runs/first-20261125-063033")).create()
    assert find_run_id("first-20261125-063033") == find_run_id("runs/first-20261125-063033") == "first"
    assert find_run_id("other") == "other" and find_run_id("") == ""
    assert find_run_names() == ["first-20261125-063033"]


def test_a_copied_run_that_lies_alone_is_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_run(None) is None
    (tmp_path / "runs/first/store").mkdir(parents=True)
    (tmp_path / "runs/latest").symlink_to("gone")
    alone = find_run(None)
    assert alone is not None and alone.path == Path("runs/first")
    (tmp_path / "runs/second/store").mkdir(parents=True)
    assert find_run(None) is None, "either could be meant"
    RunDirectory(Path("runs/second")).make_latest()
    latest = find_run(None)
    assert latest is not None and latest.path.name == "second"


@pytest.mark.integration
def test_a_model_that_is_not_there_is_said_with_those_that_are(place: Path) -> None:
    command = ("report", "reward_by_version", "--run", "first", "--model")
    sentence = "--model: there is no model 'polcy'; there are: policy"
    assert sentence in says(run_command(*command, "polcy", cwd=place))
    assert run_command(*command, "policy", cwd=place).returncode == 0


@pytest.mark.integration
def test_a_question_without_an_answer_is_said_to_have_no_rows(place: Path) -> None:
    question = ("query", "SELECT run_id FROM rollouts WHERE run_id = 'nobody'", "--run", "first")
    assert run_command(*question, cwd=place).stdout == "0 rows\n"
    assert run_command(*question, "--json", cwd=place).stdout == "[]\n"
