"""Rows into Arrow tables, column by column, as ClickHouse's types ask for. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from lightningbus.schemas.semconv.attributes import to_text
from lightningbus.store.ingest.rows.row import Row

SCALAR_TYPES: dict[str, pa.DataType] = {
    "String": pa.string(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Bool": pa.bool_(),
}
ENUM = re.compile(r"Enum8\(.*\)")
WRAPPER = re.compile(r"(?:LowCardinality|Nullable)\((.*)\)")
FIXED_STRING = re.compile(r"FixedString\((\d+)\)")
RAW_ARRAY_DTYPES = {"UInt32": np.dtype("<u4"), "Float32": np.dtype("<f4")}
"""Arrays that travel as raw little-endian bytes."""
PAIR_ARRAY = "Array(Tuple(UInt32, UInt32))"


def rows_to_arrow(rows: Sequence[Row], types: Mapping[str, str]) -> pa.Table:
    """Convert rows of one table to Arrow; ``types`` are ClickHouse's, by column.

    Raises ValueError, TypeError or OverflowError for a value that its column does not hold.
    """
    columns = zip(*(row.values() for row in rows), strict=True)
    return pa.table({name: column_to_arrow(types[name], values) for name, values in zip(rows[0], columns, strict=True)})


def column_to_arrow(kind: str, values: Sequence[Any]) -> pa.Array:
    """Convert one column."""
    if match := WRAPPER.fullmatch(kind):
        return column_to_arrow(match[1], values)
    if kind in SCALAR_TYPES:
        binary = kind == "String" and isinstance(next(iter(values), None), bytes)
        return pa.array(values, pa.binary() if binary else SCALAR_TYPES[kind])
    if ENUM.fullmatch(kind):
        return pa.array(values, pa.int8())
    if kind.startswith("DateTime64(9"):
        return pa.array(values, pa.int64()).cast(pa.timestamp("ns", "UTC"))
    if match := FIXED_STRING.fullmatch(kind):
        width = int(match[1])
        return pa.array([value or bytes(width) for value in values], pa.binary(width))
    if kind == PAIR_ARRAY:
        return _pairs_to_arrow(values)
    if kind.startswith("Array("):
        return _array_to_arrow(kind[6:-1], values)
    if kind.startswith("Map("):
        key, value = (part.strip() for part in kind[4:-1].rsplit(",", 1))
        items = [*chain(*map(_map_values, values))]
        if value == "String" and not {*map(type, items)} <= {str}:  # all of them at once: a call for each costs more
            items = [item if type(item) is str else to_text(item) for item in items]
        return pa.MapArray.from_arrays(
            _offsets(values, len), column_to_arrow(key, [*chain(*values)]), column_to_arrow(value, items)
        )
    raise TypeError(f"no Arrow column is made for {kind}")


def _map_values(value: Mapping[str, Any]) -> Any:
    return value.values()


def _array_to_arrow(kind: str, values: Sequence[Any]) -> pa.Array:
    number = RAW_ARRAY_DTYPES.get(kind)
    if number is not None and isinstance(next(iter(values), None), bytes):
        if any(len(value) % number.itemsize for value in values):
            raise ValueError(f"an array of {kind} ends amid a number")
        items = pa.array(np.frombuffer(b"".join(values), number))
        return pa.ListArray.from_arrays(_offsets(values, lambda value: len(value) // number.itemsize), items)
    return pa.ListArray.from_arrays(_offsets(values, len), column_to_arrow(kind, [*chain(*values)]))


def _pairs_to_arrow(values: Sequence[Sequence[tuple[int, int]]]) -> pa.Array:
    flat = [*chain(*values)]
    first, second = (pa.array([pair[index] for pair in flat], pa.uint32()) for index in (0, 1))
    return pa.ListArray.from_arrays(_offsets(values, len), pa.StructArray.from_arrays([first, second], ["1", "2"]))


def _offsets(values: Sequence[Any], length: Callable[[Any], int]) -> pa.Array:
    lengths = np.fromiter(map(length, values), np.int64, len(values))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
