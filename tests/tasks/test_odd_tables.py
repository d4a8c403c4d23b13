"""Tables whose rows differ: what a row does not have is absent, and nothing of it is lost in silence."""

import json
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from lightningbus.api.tasks import read_tasks
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import load_tasks
from lightningbus.tasks.task_source import TaskSource

ROWS: list[dict[str, Any]] = [
    {"id": "a", "input": {"q": "x", "place": {"city": "Bern"}, "tools": [{"name": "f", "x": 1}, {"y": [{"z": 1}]}]}},
    {"id": "b", "input": {"q": "y", "place": {"zip": 3000}, "tools": []}},
    {"id": "c", "input": {"q": "z"}},
]


def write(path: Path, table: pyarrow.Table) -> Path:
    parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("kind", ["parquet", "directory", "saved", "notebook"])
def test_keys_that_only_other_rows_have_are_absent(tmp_path: Path, kind: str) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    if kind == "notebook":
        tasks = read_tasks(datasets.Dataset(table))
    elif kind == "saved":
        datasets.Dataset(table).save_to_disk(str(tmp_path / "saved"))
        tasks = load_tasks(tmp_path / "saved")
    else:
        path = write(tmp_path / "train.parquet", table)
        tasks = load_tasks(path if kind == "parquet" else tmp_path)
    assert [task.input for task in tasks] == [row["input"] for row in ROWS]


VALUES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1), min_size=1, max_size=4))
def test_rows_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    try:
        table = pyarrow.Table.from_pylist([{"id": str(number), "input": row} for number, row in enumerate(rows)])
        path = write(tmp_path_factory.mktemp("rows") / "t.parquet", table)
    except (pyarrow.ArrowException, TypeError):  # rows that no table holds
        return
    assert [task.input for task in load_tasks(path)] == rows


def test_columns_of_nulls_stay_and_a_path_into_a_record_may_be_null(tmp_path: Path) -> None:
    rows = [{"q": "x", "hint": None, "meta": {"city": "Bern"}}, {"q": "y", "hint": "h", "meta": {"zip": 1}}]
    path = write(tmp_path / "t.parquet", pyarrow.Table.from_pylist(rows))
    assert [task.input for task in load_tasks(path)] == rows
    source = TaskSource(path=str(path), columns={"city": "meta.city"})
    assert [task.input for task in load_tasks(source)] == [{"city": "Bern"}, {"city": None}]
    with pytest.raises(TaskFileError, match="there is no column 'town'"):
        load_tasks(TaskSource(path=str(path), columns={"town": "meta.town"}))


def test_a_map_is_an_object_with_its_own_keys(tmp_path: Path) -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.map_(pyarrow.int64(), pyarrow.string()))
    inner = [[("x", [(1, "one"), (2, None)])], [], None, [("y", None)]]
    table = pyarrow.table({"q": ["a", "b", "c", "d"], "m": pyarrow.array(inner, kind)})
    assert [task.input["m"] for task in load_tasks(write(tmp_path / "t.parquet", table))] == [
        {"x": {"1": "one", "2": None}}, {}, None, {"y": None},
    ]  # fmt: skip
    lists = pyarrow.array(
        [[{"m": [("k", 1)]}], []], pyarrow.list_(pyarrow.struct({"m": pyarrow.map_("string", "int8")}))
    )
    nested = load_tasks(write(tmp_path / "u.parquet", pyarrow.table({"rows": lists})))
    assert [task.input for task in nested] == [{"rows": [{"m": {"k": 1}}]}, {"rows": []}]
    twice = pyarrow.table({"m": pyarrow.array([[("k", 1), ("k", 2)]], pyarrow.map_("string", "int8"))})
    with pytest.raises(TaskFileError, match="a map has a key twice: k, k"):
        load_tasks(write(tmp_path / "v.parquet", twice))


@pytest.mark.parametrize("labels", ["map", "struct", "column", "lines"])
def test_labels_without_a_value_are_left_out(tmp_path: Path, labels: str) -> None:
    rows = [{"difficulty": "hard", "topic": None}, {"difficulty": None, "topic": "sums"}]
    expected = [{"difficulty": "hard"}, {"topic": "sums"}]
    if labels == "lines":
        path = tmp_path / "t.jsonl"
        path.write_text("".join(json.dumps({"input": 1, "labels": row}) + "\n" for row in rows))
    else:
        values = pyarrow.array([list(row.items()) for row in rows], pyarrow.map_("string", "string"))
        column = values if labels == "map" else pyarrow.array(rows)
        path = write(tmp_path / "t.parquet", pyarrow.table({"input": [1, 2], "labels": column}))
    source = TaskSource(path=str(path))
    if labels == "column":
        named = {"difficulty": "labels.difficulty", "topic": "labels.topic"}
        source = TaskSource(path=str(path), columns={"q": "input"}, labels=named)
    assert [task.labels for task in load_tasks(source)] == expected


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "directory"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_text("q,q\na,b\n")
    elif kind == "jsonl":
        path.write_text('{"input": {"q": "a", "q": "b"}}\n')
    else:
        path = write(tmp_path / "t.parquet", pyarrow.table([["a"], ["b"]], names=["q", "q"]))
    with pytest.raises(TaskFileError, match=r"have one name|'q' stands twice|Multiple matches .* q"):
        load_tasks(path if kind != "directory" else tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "directory"])
@pytest.mark.parametrize(
    ("index", "fields"),
    [
        (["x", "y"], {"q", "n"}),
        (pandas.Index(["x", "y"], name="key"), {"q", "n"}),
        (pandas.MultiIndex.from_tuples([("x", 1), ("y", 2)]), {"q", "n"}),
        (pandas.RangeIndex(2), {"q", "n"}),
    ],
    ids=["without a name", "named", "two levels", "none"],
)
def test_an_index_of_pandas_is_no_field(tmp_path: Path, kind: str, index: Any, fields: set[str]) -> None:
    if kind == "directory" and getattr(index, "name", None):
        pytest.skip("Hugging Face's datasets do not keep which column was an index")
    pandas.DataFrame({"q": ["a", "b"], "n": [1, 2]}, index=index).to_parquet(tmp_path / "t.parquet")
    tasks = load_tasks(tmp_path / "t.parquet" if kind == "parquet" else tmp_path)
    assert [set(task.input) for task in tasks] == [fields, fields]


def test_an_index_may_be_named_and_one_that_is_called_id_is_the_tasks(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pandas.DataFrame({"q": ["a", "b"]}, index=pandas.Index(["x", "y"], name="id")).to_parquet(path)
    assert [(task.id, task.input) for task in load_tasks(path)] == [("x", {"q": "a"}), ("y", {"q": "b"})]
    pandas.DataFrame({"q": ["a", "b"]}, index=pandas.Index(["x", "y"], name="key")).to_parquet(path)
    source = TaskSource(path=str(path), columns={"key": "key"})
    assert [task.input for task in load_tasks(source)] == [{"key": "x"}, {"key": "y"}]
