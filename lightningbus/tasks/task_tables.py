"""Rows of tables and data sets, and the task that a row makes."""

import csv
import importlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.schemas.text import shorten_line
from lightningbus.tasks.task_source import HUB_PREFIX, TaskSource

MAX_CSV_FIELD_CHARACTERS = 64 * 1024 * 1024
BATCH_ROWS = 256
"""Rows of Parquet that are converted at once."""
INDEX_NAME = re.compile(r"__index_level_\d+__")
"""Names of an index of pandas without one."""
TASK_KEYS = ("id", "input", "labels")
Row = Mapping[str, Any]


class MapValue(dict[str, Any]):
    """A value of Arrow's type map: unlike those of a struct, its keys are this row's own."""


def is_table(source: TaskSource) -> bool:
    """Return whether the source holds rows of columns rather than a JSON object a line."""
    return source.path.startswith(HUB_PREFIX) or _suffix(source) in (".parquet", ".csv") or Path(source.path).is_dir()


def read_rows(source: TaskSource) -> Iterator[Row]:
    """Yield the rows of a table or a data set; raise ValueError or OSError naming the remedy."""
    if source.path.startswith(HUB_PREFIX) or Path(source.path).is_dir():
        return _read_dataset(source)
    return _read_csv(Path(source.path)) if _suffix(source) == ".csv" else _read_parquet(source)


def map_row(row: Row, source: TaskSource, is_typed: bool = False) -> dict[str, Any]:
    """Map a row to the fields ``id``, ``input`` and ``labels``; raise ValueError naming the wrong column. Pure.

    Without a map of columns, a row of only these three is a task as it is, and any other row is the input whole.
    ``is_typed``: the row is of a table whose records all have the same keys, so that those of other rows are null here;
    they are left out of records within columns.
    """
    if not source.has_map and "input" in row and all(name in TASK_KEYS for name in row):
        return {name: _to_json(row[name], name, is_typed) for name in row if name == "input" or row[name] is not None}
    id_column = source.id or ("id" if "id" in row else None)
    columns = source.columns or {name: name for name in row if name != id_column}
    cells = {name: _to_json(_cell(row, column), column, is_typed) for name, column in columns.items()}
    task: dict[str, Any] = {"input": cells}
    if id_column is not None:
        id = _cell(row, id_column)
        if not isinstance(id, str | int) or isinstance(id, bool):
            raise ValueError(f"column {id_column}: an id is text or an integer, not {str(id)[:40]!r}")
        task["id"] = id
    if source.labels:
        labels = {label: _cell(row, column) for label, column in source.labels.items()}
        task["labels"] = {label: str(value) for label, value in labels.items() if value is not None}
    return task


def _cell(row: Row, column: str) -> Any:
    """Return a column, or with dots a field of a column that holds records."""
    if column in row:
        return row[column]
    first, dot, rest = column.partition(".")
    if dot and isinstance(row.get(first), Mapping):
        return _cell(row[first], rest)
    raise ValueError(f"there is no column {column!r}; the columns are {', '.join(row)}")


def _to_json(value: Any, column: str, is_typed: bool) -> Any:
    """Convert a value to JSON's types; raise ValueError for others, such as times, bytes and NaN."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"column {column}: {value} is no JSON number")
        return value
    if isinstance(value, Mapping):
        has_all = not is_typed or isinstance(value, MapValue)
        kept = value.items() if has_all else [item for item in value.items() if item[1] is not None]
        return {str(name): _to_json(inner, column, is_typed) for name, inner in kept}
    if isinstance(value, list | tuple):
        return [_to_json(inner, column, is_typed) for inner in value]
    raise ValueError(
        f"column {column}: {type(value).__name__} is no JSON value; name the columns the agent needs in `columns`"
    )


def _suffix(source: TaskSource) -> str:
    return Path(source.path).suffix.lower()


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = next(lines, [])
            if len(set(header)) < len(header):
                raise ValueError(f"two columns of the header {', '.join(header)} have one name")
            for fields in filter(None, lines):
                if len(fields) != len(header):
                    raise ValueError(f"line {lines.line_num} has {len(fields)} fields, and the header {len(header)}")
                yield dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num} is not CSV: {error}") from error


def _read_parquet(source: TaskSource) -> Iterator[Row]:
    parquet = _require("pyarrow.parquet")
    try:
        with parquet.ParquetFile(source.path) as file:
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise ValueError(f"two columns of {', '.join(names)} have one name")
            index = _index_columns(file.schema_arrow.metadata or {})
            for batch in file.iter_batches(BATCH_ROWS, columns=_needed_columns(source, names, index)):
                yield from _read_batch(batch)
    except _require("pyarrow").ArrowException as error:
        raise ValueError(f"it is not Parquet: {error}") from error


def _index_columns(metadata: Mapping[bytes, bytes]) -> set[str]:
    """Read the names of the columns that are an index of pandas and no field: pandas' metadata of the file has them."""
    try:
        columns = json.loads(metadata.get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, LookupError, TypeError):
        return set()
    return {name for name in columns if isinstance(name, str)} if isinstance(columns, list) else set()


def _read_batch(batch: Any) -> Iterator[Row]:
    """Yield the rows of an Arrow batch; a map is an object."""
    types = _require("pyarrow.types")
    with_maps = [field for field in batch.schema if "map<" in str(field.type)]
    for row in batch.to_pylist():
        yield row | {field.name: _maps_to_objects(row[field.name], field.type, types) for field in with_maps}


def _maps_to_objects(value: Any, kind: Any, types: ModuleType) -> Any:
    """Convert a value of Arrow's type ``kind``: maps, which Arrow gives as pairs, become objects."""
    if value is None:
        return None
    if types.is_map(kind):
        pairs = MapValue({str(key): _maps_to_objects(inner, kind.item_type, types) for key, inner in value})
        if len(pairs) < len(value):
            raise ValueError(f"a map has a key twice: {', '.join(str(key)[:80] for key, _ in value)}")
        return pairs
    if types.is_struct(kind):
        return {field.name: _maps_to_objects(value[field.name], field.type, types) for field in kind.fields}
    if isinstance(value, list):
        return [_maps_to_objects(inner, kind.value_type, types) for inner in value]
    return value


def _read_dataset(source: TaskSource) -> Iterator[Row]:
    datasets = _require("datasets")
    if source.path.startswith(HUB_PREFIX):
        data = _load_dataset(datasets, source.path.removeprefix(HUB_PREFIX), source)
    elif (Path(source.path) / "dataset_dict.json").exists() or (Path(source.path) / "state.json").exists():
        data = datasets.load_from_disk(source.path)
        if isinstance(data, datasets.DatasetDict):
            if source.split not in data:
                raise ValueError(f"there is no split {source.split!r}; the splits are {', '.join(data)}")
            data = data[source.split]
    else:
        data = _load_dataset(datasets, source.path, source)
    yield from data.select_columns(_needed_columns(source, data.column_names))


def _load_dataset(datasets: ModuleType, name: str, source: TaskSource) -> Any:
    try:
        return datasets.load_dataset(name, source.config, split=source.split)
    except Exception as error:  # the library raises whatever its builders and its client of the Hub raise
        reason = error.__cause__ or error  # its own words are that an error occurred
        raise ValueError(f"the data set cannot be loaded: {shorten_line(str(reason), 300)}") from error


def _needed_columns(source: TaskSource, names: list[str], index: Collection[str] = ()) -> list[str]:
    """List the columns that a task is made of, so that no other is read; without a map all but an ``index``."""
    wanted = {*source.columns.values(), *source.labels.values(), source.id or "id"}
    if not source.columns:
        is_index = [name in index or INDEX_NAME.fullmatch(name) for name in names]
        return [name for name, left_out in zip(names, is_index, strict=True) if not left_out or name in wanted]
    return [name for name in names if any(column == name or column.startswith(f"{name}.") for column in wanted)]


def _require(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(describe_missing_module(error.name, "data")) from error
