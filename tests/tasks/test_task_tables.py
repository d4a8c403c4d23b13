"""Tasks of Parquet, CSV and data sets: what a row makes, with and without a map of columns."""

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import TaskInput, load_tasks
from lightningbus.tasks.task_source import TaskSource, parse_columns

ROWS = [
    {"uid": "a", "prompt": "2+2", "target": 4, "extra": {"level": "easy"}},
    {"uid": "b", "prompt": "2*3", "target": 6, "extra": {"level": "hard"}},
]
MAP: dict[str, Any] = {"columns": {"question": "prompt", "answer": "target"}, "id": "uid"}


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_dataset(path: Path) -> Path:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(path))
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "directory of Parquet", "saved data set"])
def test_a_map_of_columns_makes_the_same_tasks_of_every_source(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        path = write_parquet(tmp_path / "train.parquet", ROWS)
    elif kind == "jsonl":
        path = tmp_path / "train.jsonl"
        datasets.Dataset.from_list(ROWS).to_json(str(path))
    elif kind == "directory of Parquet":
        write_parquet(tmp_path / "train.parquet", ROWS)
        path = tmp_path
    else:
        path = write_dataset(tmp_path / "saved")
    source = TaskSource(path=str(path), labels={"difficulty": "extra.level"}, **MAP)
    assert load_tasks(source) == [
        TaskInput("a", {"question": "2+2", "answer": 4}, {"difficulty": "easy"}),
        TaskInput("b", {"question": "2*3", "answer": 6}, {"difficulty": "hard"}),
    ]


def test_csv_has_text_and_row_numbers_as_ids(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('﻿prompt,target\n"two\nlines",4\n\nx,\n', encoding="utf-8")
    assert load_tasks(path) == [
        TaskInput("1", {"prompt": "two\nlines", "target": "4"}),
        TaskInput("2", {"prompt": "x", "target": ""}),
    ]
    assert [task.input for task in load_tasks(TaskSource(path=str(path), columns={"question": "prompt"}))] == [
        {"question": "two\nlines"},
        {"question": "x"},
    ]


def test_rows_that_are_tasks_already_stay_as_they_are(tmp_path: Path) -> None:
    rows = [{"id": "a", "input": {"n": 1}, "labels": {"level": "easy"}}, {"id": "b", "input": {"n": 2}, "labels": None}]
    assert load_tasks(write_parquet(tmp_path / "t.parquet", rows)) == [
        TaskInput("a", {"n": 1}, {"level": "easy"}),
        TaskInput("b", {"n": 2}),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"uid": "c", "prompt": None, "target": float("nan")}, "row 2: column target: nan is no JSON number"),
        ({"uid": None, "prompt": "x", "target": 1.0}, "row 2: column uid: an id is text or an integer, not 'None'"),
        ({"uid": "a", "prompt": "x", "target": 1.0}, "row 2: id 'a' stands twice"),
    ],
)
def test_a_bad_row_is_named_by_its_number_and_column(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    path = write_parquet(tmp_path / "t.parquet", [{"uid": "a", "prompt": "p", "target": 1.0}, row])
    with pytest.raises(TaskFileError, match="^" + str(path)) as raised:
        load_tasks(TaskSource(path=str(path), **MAP))
    assert str(raised.value).endswith(reason)


@pytest.mark.parametrize(
    ("name", "content", "fields", "reason"),
    [
        ("t.csv", "a,b\n1,2\n1\n", {}, "cannot be read after row 1: line 3 has 1 fields, and the header 2"),
        ("t.csv", "a,a\n1,2\n", {}, "cannot be read: two columns of the header a, a have one name"),
        ("t.csv", 'a\n"x', {}, "cannot be read: line 2 is not CSV: unexpected end of data"),
        ("t.csv", "a\n", {}, "holds no task"),
        ("t.csv", "a\n1\n", {"columns": {"q": "b"}}, "row 1: there is no column 'b'; the columns are a"),
        ("t.parquet", "a\n1\n", {}, "cannot be read: it is not Parquet: "),
        ("t.jsonl", '{"a": 1}\n', {"columns": {"q": "b"}}, "line 1: there is no column 'b'; the columns are a"),
    ],
)
def test_a_file_that_is_no_table_is_named(
    tmp_path: Path, name: str, content: str, fields: dict[str, Any], reason: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TaskFileError) as raised:
        load_tasks(TaskSource(path=str(tmp_path / name), **fields))
    assert str(raised.value).startswith(f"{tmp_path / name} {reason}")


def test_a_time_is_named_and_leaving_its_column_out_helps(tmp_path: Path) -> None:
    row = {"prompt": "x", "at": datetime.datetime(2026, 1, 1)}
    path = write_parquet(tmp_path / "t.parquet", [row])
    with pytest.raises(TaskFileError, match="row 1: column at: datetime is no JSON value; name the columns"):
        load_tasks(path)
    assert load_tasks(TaskSource(path=str(path), columns={"q": "prompt"})) == [TaskInput("1", {"q": "x"})]


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskFileError, match="cannot be read: the data set cannot be loaded: "):
        load_tasks(tmp_path / "empty")
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(TaskFileError, match="there is no split 'train'; the splits are test"):
        load_tasks(tmp_path / "saved")
    assert len(load_tasks(TaskSource(path=str(tmp_path / "saved"), split="test", **MAP))) == 2


@pytest.mark.integration
@pytest.mark.parametrize(("missing", "path"), [("pyarrow", "t.parquet"), ("datasets", "hf:openai/gsm8k")])
def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, missing: str, path: str) -> None:
    (tmp_path / "t.parquet").write_bytes(b"")
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from lightningbus.tasks.task_loading import load_tasks; load_tasks({path!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.endswith(f"{missing} is not installed: pip install 'lightningbus[data]'\n"), done.stderr


def test_columns_of_the_command_line() -> None:
    assert parse_columns(["question=prompt,answer=a.b", "n=m"]) == {"question": "prompt", "answer": "a.b", "n": "m"}
    with pytest.raises(ValueError, match="'prompt' is not of the form field=column"):
        parse_columns(["prompt"])
