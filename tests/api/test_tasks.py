"""Tasks of a notebook are read as a task file would be."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy
import pandas
import pytest

from lightningbus.api.tasks import read_tasks, save_evaluation_tasks, save_tasks
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import load_tasks

ROWS = [{"id": "a", "input": {"question": "1+1"}}, {"id": "b", "input": {"question": "2+2"}}]


@pytest.mark.parametrize(
    "tasks",
    [ROWS, iter(ROWS), pandas.DataFrame(ROWS), datasets.Dataset.from_list(ROWS)],
    ids=["list", "iterator", "DataFrame", "Dataset"],
)
def test_rows_with_id_and_input_are_tasks(tasks: Any) -> None:
    assert [(task.id, task.input) for task in read_tasks(tasks)] == [(row["id"], row["input"]) for row in ROWS]


@pytest.mark.parametrize(
    "tasks",
    [
        [{"question": "1+1", "n": 2}],
        pandas.DataFrame({"question": ["1+1"], "n": numpy.array([2])}),
        datasets.Dataset.from_dict({"question": ["1+1"], "n": [2]}),
    ],
    ids=["list", "DataFrame", "Dataset"],
)
def test_rows_of_other_columns_are_inputs(tasks: Any) -> None:
    (task,) = read_tasks(tasks)
    assert task.id == ("0" if isinstance(tasks, pandas.DataFrame) else "1")
    assert task.input == {"question": "1+1", "n": 2}


@pytest.mark.parametrize(
    ("index", "ids"),
    [
        (None, ["0", "1"]),
        ([4, 7], ["4", "7"]),
        (["x", "y"], ["x", "y"]),
        ([0.0, 1.0], ["0", "1"]),
        ([0.5, 1.5], ["0.5", "1.5"]),
        ([True, False], ["True", "False"]),
        (pandas.to_datetime(["2026-01-01", "2026-01-02"]), ["2026-01-01 00:00:00", "2026-01-02 00:00:00"]),
        (pandas.MultiIndex.from_tuples([("a", 1), ("a", 2)]), ["('a', 1)", "('a', 2)"]),
    ],
)
def test_the_label_of_a_row_in_the_index_is_its_id(index: Any, ids: list[str]) -> None:
    frame = pandas.DataFrame({"question": ["1+1", "2+2"]}, index=index)
    assert [task.id for task in read_tasks(frame)] == ids
    assert [(task.id, task.input) for task in read_tasks(frame["question"])] == [(ids[0], "1+1"), (ids[1], "2+2")]


def test_a_label_that_stands_twice_is_refused_unless_rows_have_ids(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"question": ["1+1", "2+2", "3+3"]}, index=[0, 1, 0])
    with pytest.raises(TaskFileError, match=r"tasks: task 3: id '0' stands twice; ids are labels of the index, "):
        save_tasks(frame, tmp_path)
    assert [task.id for task in read_tasks(frame.assign(id=["a", "b", "c"]))] == ["a", "b", "c"]
    with pytest.raises(TaskFileError, match=r"^task 2: id 'a' stands twice$"):
        read_tasks(frame.assign(id=["a", "a", "c"]))


def test_a_missing_value_of_a_frame_is_null() -> None:
    frame = pandas.DataFrame(
        {"question": ["1+1", None], "hint": [None, "carry"], "n": [1.5, float("nan")], "tags": [["a"], None]}
    )
    assert [task.input for task in read_tasks(frame)] == [
        {"question": "1+1", "hint": None, "n": 1.5, "tags": ["a"]},
        {"question": None, "hint": "carry", "n": None, "tags": None},
    ]


def test_text_is_an_input_and_a_path_is_a_file(tmp_path: Path) -> None:
    assert [task.input for task in read_tasks(["what is 1+1?", "and 2+2?"])] == ["what is 1+1?", "and 2+2?"]
    (tmp_path / "tasks.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    assert [task.id for task in read_tasks(tmp_path / "tasks.jsonl")] == ["a"]
    assert save_tasks(tmp_path / "tasks.jsonl", tmp_path) == str(tmp_path / "tasks.jsonl")
    benchmark = {"path": "gsm8k.jsonl", "benchmark": "gsm8k"}
    assert save_tasks(benchmark, tmp_path) == benchmark
    table = {"path": "tasks.csv", "columns": {"question": "prompt"}}
    saved = save_tasks(table, tmp_path)
    assert isinstance(saved, dict) and saved.items() >= table.items()


def test_a_missing_id_or_label_of_a_row_is_left_out() -> None:
    frame = pandas.DataFrame({"id": ["a", None], "input": [1, 2], "labels": [{"level": "hard"}, None]}, dtype=object)
    assert [(task.id, task.labels) for task in read_tasks(frame)] == [("a", {"level": "hard"}), ("1", {})]


def test_the_same_tasks_are_saved_once_and_read_back(tmp_path: Path) -> None:
    path = save_tasks(ROWS, tmp_path / "runs")
    assert save_tasks(list(ROWS), tmp_path / "runs") == path
    assert isinstance(path, str) and load_tasks(path) == read_tasks(ROWS)
    assert Path(path).parent.stat().st_mode & 0o077 == 0


def test_suites_take_rows_as_tasks_do(tmp_path: Path) -> None:
    suites = [{"name": "frame", "tasks": pandas.DataFrame(ROWS), "samples": 4}, {"name": "file", "tasks": "hard.jsonl"}]
    section = save_evaluation_tasks({"tasks": datasets.Dataset.from_list(ROWS), "every": 2, "suites": suites}, tmp_path)
    assert section["every"] == 2 and section["suites"][0]["samples"] == 4 and section["suites"][1] == suites[1]
    assert load_tasks(section["tasks"]) == load_tasks(section["suites"][0]["tasks"]) == read_tasks(ROWS)
    with pytest.raises(TaskFileError, match=r"eval\.suites\.0\.tasks: task 2: id 'a' stands twice"):
        save_evaluation_tasks({"suites": [{"name": "twice", "tasks": [ROWS[0], ROWS[0]]}]}, tmp_path)
    assert save_evaluation_tasks({"every": 2}, tmp_path) == {"every": 2}
    assert save_evaluation_tasks(3, tmp_path) == 3, "what is no section is for the settings to refuse"


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ({"path": "t.csv", "column": {}}, "tasks: column: no such setting; did you mean 'columns'?"),
        ([], "there are no tasks"),
        ({"id": "a", "input": 1}, "the tasks are one mapping: give a list of them"),
        ([{"id": "a", "input": 1}, {"id": "a", "input": 2}], "task 2: id 'a' stands twice"),
        ([{"input": object()}], "task 1: object cannot be part of a task"),
        ([float("nan")], "task 1: NaN is no JSON number"),
        ([{"id": "a b ", "input": 1}], "task 1: id 'a b '"),
    ],
)
def test_a_wrong_task_is_named_by_its_position(tasks: Any, sentence: str) -> None:
    with pytest.raises(TaskFileError) as raised:
        read_tasks(tasks)
    assert sentence in str(raised.value)
