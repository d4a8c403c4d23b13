"""Runs of a directory: how they are found, labelled, renamed and deleted."""

import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from lightningbus.bus.directory_lock import lock_directory
from lightningbus.bus.errors import BusError
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.machine.hardware import read_hardware
from lightningbus.run.results.results import Results
from lightningbus.run.run_data.other_runs import OtherRuns
from lightningbus.run.run_data.run_overview import list_runs
from lightningbus.run.run_data.training_record import TrainingRecord, choose_state, read_training
from lightningbus.run.run_directory.deletion import DELETED, delete_run
from lightningbus.run.run_directory.directory import SETTINGS, Endpoints, RunDirectory
from lightningbus.run.run_directory.disk_usage import measure_disk_bytes
from lightningbus.run.run_directory.labels import (
    LABELS,
    MAX_NOTE_CHARS,
    TAG,
    Labels,
    change_labels,
    edit_note,
    edit_tags,
    parse_tag_changes,
    read_all_labels,
    read_labels,
)
from lightningbus.run.run_directory.lookup import find_changeable_run, find_run_names
from lightningbus.run.run_directory.references import find_references, names_run
from lightningbus.run.run_directory.renaming import rename_run
from lightningbus.store.ui.run_list import label_runs, merge_runs

BEGAN = 1_790_000_000


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory with the runs ``a``, ``b`` and ``c``, started in this order."""
    for number, name in enumerate("abc"):
        make_run(tmp_path / "runs" / name, BEGAN + 100 * number)
    return tmp_path / "runs"


def make_run(path: Path, started_at: int) -> RunDirectory:
    run = RunDirectory(path).create()
    (path / "job.json").write_text("{}")
    os.utime(path / "job.json", (started_at, started_at))
    return run


def results(name: str, is_finished: bool = False) -> Results:
    return Results(
        run=name, is_finished=is_finished, model="policy", model_path=Path("M"), settings_sha256="", seed=0,
        max_steps=9, perfect_reward=1.0, hardware=read_hardware(), packages={},
    )  # fmt: skip


def evaluation(label: str, version: int, mean_reward: float) -> Evaluation:
    return Evaluation(
        label=label, version=version, versions={"policy": version}, mean_reward=mean_reward, standard_error=None,
        num_tasks=1, rollouts=1, ok=1, seconds=1.0,
    )  # fmt: skip


def names(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir())


# Finding


def test_a_run_is_found_by_its_name_or_as_the_latest(runs: Path) -> None:
    assert find_changeable_run("a", runs).path == runs / "a"
    assert find_changeable_run("latest", runs).path == runs / "c"


def test_a_link_to_a_run_elsewhere_is_no_run_of_the_directory(runs: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere" / "far", BEGAN)
    (runs / "far").symlink_to(tmp_path / "elsewhere" / "far")
    (runs / "latest").unlink()
    (runs / "latest").symlink_to(tmp_path / "elsewhere" / "far")
    for name, sentence in (("far", "is a link, not a run"), ("latest", "leads to no run in")):
        with pytest.raises(UserError, match=sentence):
            find_changeable_run(name, runs)
    assert "far" not in [run.name for run in list_runs(runs)]


def test_data_of_a_store_by_itself_is_no_run(runs: Path) -> None:
    (runs / "store" / "store").mkdir(parents=True)
    with pytest.raises(UserError, match="there is no run 'store'"):
        find_changeable_run("store", runs)


def test_a_misspelt_name_gets_a_hint(runs: Path) -> None:
    make_run(runs / "first", BEGAN)
    with pytest.raises(UserError, match=r"there is no run 'frist' in .*; did you mean 'first'\?"):
        find_changeable_run("frist", runs)


@given(name=st.text() | st.sampled_from(["..", ".", "", "a/", "./a", "a/../b", "/", "a\0", "latest/", "x" * 5000]))
def test_no_other_text_is_the_name_of_a_run(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    runs = tmp_path_factory.getbasetemp() / "property-of-names"
    if not runs.exists():
        for each in "ab":
            RunDirectory(runs / each)._make()
    try:
        run = find_changeable_run(name, runs)
    except UserError:
        assert name not in ("a", "b")
    else:
        assert run.path.name == name and run.path.parent == runs and name in ("a", "b")


# Labels


@pytest.mark.parametrize(
    ("changes", "removed", "expected"),
    [
        (["+good", "-bad"], [], (["good"], ["bad"])),
        (["good"], ["bad"], (["good"], ["bad"])),
        (["lr:1e-5", "a-b"], [], (["lr:1e-5", "a-b"], [])),
    ],
)
def test_tags_are_added_and_removed(
    changes: list[str], removed: list[str], expected: tuple[list[str], list[str]]
) -> None:
    assert parse_tag_changes(changes, removed) == expected


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ([], "give tags"),
        (["two words"], "'two words' is not a tag"),
        (["--bad"], "'-bad' is not a tag"),
        (["+"], "'' is not a tag"),
        (["x" * 65], "is not a tag"),
        (["+good", "-good"], "'good' is to be added and removed"),
    ],
)
def test_wrong_tags_are_refused(changes: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_tag_changes(changes)


def test_a_tag_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(UserError, match=r"there is no tag 'god' to remove; did you mean 'good'\?"):
        edit_tags(Labels(tags=("good",)), [], ["god"])
    with pytest.raises(UserError, match=r"there is no tag .god. to remove; the run has none$"):
        edit_tags(Labels(), ["other"], ["god"])


@given(
    before=st.lists(st.from_regex(TAG, fullmatch=True), unique=True, max_size=4),
    added=st.lists(st.from_regex(TAG, fullmatch=True), max_size=4),
    data=st.data(),
)
def test_tags_stay_a_set_in_their_order(before: list[str], added: list[str], data: st.DataObject) -> None:
    removed = data.draw(st.lists(st.sampled_from(before), unique=True)) if before else []
    tags = edit_tags(Labels(tags=tuple(before)), added, removed).tags
    assert set(tags) == (set(before) | set(added)) - set(removed) and len(tags) == len(set(tags))
    assert [tag for tag in tags if tag in before] == [tag for tag in before if tag not in removed]


def test_a_note_is_bounded_text() -> None:
    assert edit_note(Labels(note="old"), " new ").note == "new" and edit_note(Labels(note="old"), "").note == ""
    for note, sentence in (("x" * (MAX_NOTE_CHARS + 1), "at most 2000"), ("\udc80", "is not UTF-8")):
        with pytest.raises(UserError, match=sentence):
            edit_note(Labels(), note)


def test_labels_are_no_event_of_the_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page orders runs by the time of their files, and a run that is moved aside is named by it."""
    monkeypatch.chdir(runs.parent)
    (runs / "a" / "store" / "data").touch()
    for path in (*(runs / "a").glob("[!.]*"), runs / "a"):
        os.utime(path, (BEGAN, BEGAN))
    change_labels(runs / "a", lambda labels: replace(labels, note="x"))
    assert (runs / "a").stat().st_mtime == BEGAN
    assert [run.last_ms for run in OtherRuns("lightningbus").list()] == [1000 * BEGAN]


def test_a_change_that_fails_leaves_the_labels(runs: Path) -> None:
    change_labels(runs / "a", lambda labels: edit_tags(labels, ["good"], []))
    before = (runs / "a" / LABELS).read_bytes()
    with pytest.raises(UserError):
        change_labels(runs / "a", lambda labels: edit_tags(labels, ["new"], ["bad"]))
    assert (runs / "a" / LABELS).read_bytes() == before
    assert not (runs / "a" / f".{LABELS}").exists()


def test_tags_that_are_added_at_once_are_all_there(runs: Path) -> None:
    tags = [f"tag{number}" for number in range(16)]
    threads = [
        threading.Thread(target=change_labels, args=(runs / "a", lambda labels, tag=tag: edit_tags(labels, [tag], [])))
        for tag in tags
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_labels(runs / "a").tags) == set(tags)


def test_labels_that_cannot_be_read_are_named_and_kept(runs: Path) -> None:
    (runs / "b" / LABELS).write_text("{")
    with pytest.raises(UserError, match=r"labels.json cannot be read .*: correct it, or delete it"):
        change_labels(runs / "b", lambda labels: edit_note(labels, "x"))
    assert (runs / "b" / LABELS).read_text() == "{"
    listed = {run.name: run.problem for run in list_runs(runs)}
    assert "cannot be read" in listed["b"] and listed["a"] == listed["c"] == ""
    assert "b" not in read_all_labels(runs)


# Listing


def test_runs_are_listed_with_their_figures_the_newest_first(runs: Path) -> None:
    written = results("a")
    written.steps, written.reward, written.seconds = 4, 0.5, 12.34
    for label, version, mean in (("greedy", 0, 0.1), ("sampled", 0, 0.2), ("greedy", 4, 0.7), ("sampled", 4, 0.6)):
        written.add_evaluation(evaluation(label, version, mean))
    written.write(runs / "a")
    change_labels(runs / "a", lambda labels: replace(labels, tags=("good",), note="why"))
    listed = list_runs(runs)
    assert [run.name for run in listed] == ["c", "b", "a"]
    a = listed[-1]
    assert (a.seconds, a.steps, a.max_steps, a.reward, a.heldout) == (12.3, 4, 9, 0.5, 0.7)
    assert (a.tags, a.note, a.state, a.started_at.timestamp()) == (("good",), "why", "stopped", BEGAN)
    assert (listed[0].steps, listed[0].heldout) == (None, None)
    assert [run.name for run in list_runs(runs, tag="good")] == ["a"]
    assert list_runs(runs / "nowhere") == []


def test_archived_runs_are_listed_on_demand(runs: Path) -> None:
    change_labels(runs / "b", lambda labels: replace(labels, is_archived=True))
    assert [run.name for run in list_runs(runs)] == ["c", "a"]
    assert [run.name for run in list_runs(runs, archived=True)] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("is_up", "training", "expected"),
    [
        (True, TrainingRecord(has_training=True), "running"),
        (True, TrainingRecord(has_training=False), "running"),
        (False, TrainingRecord(has_training=True), "stopped"),
        (False, TrainingRecord(has_training=True, steps=4, max_steps=9), "stopped"),
        (False, TrainingRecord(has_training=True, steps=9, max_steps=9), "finished"),
        (
            False,
            TrainingRecord(has_training=True, steps=4, max_steps=9, results=results("a", is_finished=True)),
            "finished",
        ),
        (False, TrainingRecord(has_training=False), "ended"),
    ],
)
def test_the_state_of_a_run(is_up: bool, training: TrainingRecord, expected: str) -> None:
    assert choose_state(is_up, training) == expected


def test_a_training_without_a_job_has_the_steps_of_its_checkpoints(runs: Path) -> None:
    run = runs / "a"
    (run / "job.json").unlink()
    (run / "work" / "learner-first.json").write_text(json.dumps({"model": "policy", "max_steps": 0}))
    assert not read_training(RunDirectory(run)).has_training, "it publishes a model and trains none"
    (run / "work" / "learner.json").write_text(json.dumps({"model": "policy", "max_steps": 10}))
    for name in ("step-000008-1", "step-000010-1", "broken-step-000011-1"):
        (run / "checkpoints" / name).mkdir()
    listed = {each.name: (each.state, each.steps, each.max_steps) for each in list_runs(runs)}
    assert listed["a"] == ("finished", 10, 10)


def test_reading_a_run_changes_nothing_that_the_lists_show(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening its bus and its store writes in their directories."""
    monkeypatch.chdir(runs.parent)
    run = runs / "a"
    written = results("a", is_finished=True)
    written.steps, written.reward, written.rollouts = 9, 0.5, 64
    written.write(run)
    (run / "work" / "learner.json").write_text(
        json.dumps({"model": "policy", "max_steps": 9, "model_path": "small/model", "actor": {"optim": {"lr": 1e-5}}})
    )
    (run / "store" / "data").mkdir()
    for path in (run / "results.json", run / "work" / "learner.json"):
        os.utime(path, (BEGAN + 60, BEGAN + 60))
    entries, listed = merge_runs([], OtherRuns("lightningbus").list()), list_runs(runs)
    (entry,) = (each for each in entries if each["run_id"] == "a")
    assert (entry["state"], entry["step"], entry["max_steps"]) == ("finished", 9, 9)
    assert (entry["first_ms"], entry["last_ms"]) == (1000 * BEGAN, 1000 * (BEGAN + 60))
    assert entry["settings"] == {"model": "small/model", "lr": 1e-5}
    assert [(each["rollouts"], each["mean_reward"]) for each in entry["sets"]] == [(64, 0.5)]
    for path in (run / "store" / "data", run / "store", run / "bus", run / "checkpoints", run):
        os.utime(path)
    assert merge_runs([], OtherRuns("lightningbus").list()) == entries and list_runs(runs) == listed
    assert OtherRuns("lightningbus").find_end("a") == "finished"
    assert OtherRuns("lightningbus").find_end("nowhere") is None


def test_a_run_is_running_from_its_lock_to_its_end(runs: Path) -> None:
    def state() -> str:
        return next(run.state for run in list_runs(runs) if run.name == "a")

    with RunDirectory(runs / "a").lock():
        assert state() == "running"
    assert state() == "stopped"
    RunDirectory(runs / "a").write_endpoints(Endpoints(os.getpid(), "nats://x"))
    assert state() == "running"


def test_the_page_has_labels_by_the_name_and_by_the_id_of_a_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    rename_run("a", "best", runs)
    change_labels(runs / "best", lambda labels: replace(labels, tags=("good",), is_archived=True))
    labels = OtherRuns("lightningbus").list_labels()
    for run_id in ("a", "best"):
        (entry,) = label_runs([{"run_id": run_id}], labels)
        assert (list(entry["tags"]), entry["is_archived"]) == (["good"], True)
    assert label_runs([{"run_id": "b"}], labels) == [{"run_id": "b", "tags": [], "note": "", "is_archived": False}]


# Renaming


def test_a_renamed_run_keeps_its_id_and_is_the_latest_still(runs: Path) -> None:
    change_labels(runs / "c", lambda labels: edit_note(labels, "kept"))
    run = rename_run("latest", "best", runs)
    assert (run.path, run.run_id, read_labels(run.path).note) == (runs / "best", "c", "kept")
    assert names(runs) == ["a", "b", "best", "latest"] and (runs / "latest").resolve() == runs / "best"
    assert rename_run("best", "better", runs).run_id == "c"
    back = rename_run("better", "c", runs)
    assert (back.run_id, read_labels(back.path).run_id) == ("c", "")
    assert rename_run("a", "first", runs).run_id == "a" and (runs / "latest").resolve() == runs / "c"


def test_a_run_goes_on_under_its_own_name_only(runs: Path) -> None:
    run = rename_run("a", "best", runs)
    with pytest.raises(BusError, match="run 'best' was renamed and its data has the name 'a'"), run.lock():
        pass
    with rename_run("best", "a", runs).lock():
        pass
    rename_run("a", "best", runs)
    with RunDirectory(runs / "best").lock(fresh=True) as fresh:
        assert fresh.run_id == "best", "the earlier run is moved aside with its labels"
    (aside,) = runs.glob("best-*")
    assert RunDirectory(aside).run_id == "a"


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        ("b", "is there already"),
        ("a", "is there already"),
        ("taken", "is there already"),
        ("latest", "is not a name"),
        ("x/y", "is not a name"),
        ("..", "is not a name"),
        ("", "is not a name"),
        ("x" * 65, "is not a name"),
    ],
)
def test_a_wrong_new_name_changes_nothing(runs: Path, new: str, sentence: str) -> None:
    (runs / "taken").symlink_to("nowhere")
    before = names(runs)
    with pytest.raises(UserError, match=sentence):
        rename_run("a", new, runs)
    assert names(runs) == before and read_labels(runs / "a") == Labels()


@pytest.mark.parametrize("part", [".", "store", "bus", "checkpoints"])
def test_a_run_in_use_is_neither_renamed_nor_deleted(runs: Path, part: str) -> None:
    sentence = rf"(run 'a' is up|is in use by another process) \(pid {os.getpid()}\): stop it"
    with lock_directory(runs / "a" / part):
        with pytest.raises(BusError, match=sentence):
            rename_run("a", "best", runs)
        with pytest.raises(BusError, match=sentence):
            delete_run(RunDirectory(runs / "a"), runs)
    assert names(runs) == ["a", "b", "c", "latest"] and read_labels(runs / "a") == Labels()


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ('{"model_path": "/home/me/runs/first/checkpoints"}', True),
        ("model_path: runs/first", True),
        ("name: first", True),
        ('"run": "first"', True),
        ("model_path: runs/first-2", False),
        ("name: first_one", False),
        ("model_path: overruns/first", False),
        ("label: first", False),
        ("rename: first", False),
    ],
)
def test_settings_name_a_run_by_its_path_or_its_name(text: str, is_named: bool) -> None:
    assert names_run(text, "first", "runs") == is_named


def test_files_that_name_a_run_are_listed(runs: Path, tmp_path: Path) -> None:
    (runs / "a" / "work" / "learner.json").write_text(json.dumps({"checkpoint_dir": str(runs / "a" / "checkpoints")}))
    (runs / "b" / "job.json").write_text(json.dumps({"learner": {"model_path": "runs/a/model"}}))
    (runs / "c" / "work" / "learner.json").write_bytes(b"\xff name: a")
    (tmp_path / "run.yaml").write_text("name: a\n")
    (tmp_path / "other.yml").write_text("name: b\n")
    files = [str(path.relative_to(tmp_path)) for path in find_references("a", runs, tmp_path)]
    assert files == ["runs/a/work/learner.json", "runs/b/job.json", "run.yaml"]


# Deleting


def test_a_deleted_run_leaves_nothing_and_the_one_before_is_the_latest(runs: Path) -> None:
    delete_run(RunDirectory(runs / "c"), runs)
    assert names(runs) == ["a", "b", "latest"] and (runs / "latest").resolve() == runs / "b"
    delete_run(RunDirectory(runs / "a"), runs)
    assert (runs / "latest").resolve() == runs / "b"
    delete_run(RunDirectory(runs / "b"), runs)
    assert names(runs) == []


def test_a_run_that_is_left_with_its_versions_and_settings_is_listed_and_deleted(runs: Path) -> None:
    run = RunDirectory(runs / "b")
    (run.path / SETTINGS).write_text("{}")
    for part in ("store", "work", "logs", "checkpoints"):
        shutil.rmtree(run.path / part)
    assert "b" in {each.name for each in list_runs(runs)}
    delete_run(find_changeable_run("b", runs), runs)
    assert not run.path.exists()


def test_what_links_lead_to_is_not_deleted(runs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "store").mkdir(parents=True)
    (outside / "file").write_text("kept")
    (outside / "store" / "data").write_text("kept")
    mode = (outside / "store").stat().st_mode
    (runs / "a" / "store").rmdir()
    (runs / "a" / "store").symlink_to(outside / "store")
    (runs / "a" / "work" / "there").symlink_to(outside)
    (runs / "a" / "work" / "file").symlink_to(outside / "file")
    delete_run(find_changeable_run("a", runs), runs)
    assert sorted(path.name for path in outside.rglob("*")) == ["data", "file", "store"]
    assert (outside / "store").stat().st_mode == mode
    assert not (runs / "a").exists()


def test_the_remains_of_an_interrupted_deletion_are_no_run_and_go_with_the_next(runs: Path) -> None:
    remains = (runs / "b").rename(runs / f"{DELETED}b-1")
    assert [run.name for run in list_runs(runs)] == ["c", "a"] and sorted(find_run_names(runs)) == ["a", "c"]
    delete_run(RunDirectory(runs / "a"), runs)
    assert not remains.exists()


def test_files_that_cannot_be_deleted_are_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("lightningbus.run.run_directory.deletion.shutil.rmtree", fail)
    with pytest.raises(UserError, match=r"\.deleted-a-\d+ cannot be deleted whole: Input/output error"):
        delete_run(RunDirectory(runs / "a"), runs)


def test_the_space_of_a_run_is_what_its_deletion_frees(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    (directory / "work").mkdir(parents=True)
    empty = measure_disk_bytes(directory)
    block = 1 << 16
    (directory / "one").write_bytes(os.urandom(block))
    os.link(directory / "one", directory / "work" / "same")
    assert block <= measure_disk_bytes(directory) - empty < 2 * block, "two names of one file"
    (tmp_path / "outside").write_bytes(os.urandom(block))
    (directory / "link").symlink_to(tmp_path / "outside")
    os.link(tmp_path / "outside", directory / "shared")
    assert measure_disk_bytes(directory) - empty < 2 * block, "what stays elsewhere frees nothing"
