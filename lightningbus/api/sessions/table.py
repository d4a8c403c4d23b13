"""Rows of an answer, which show themselves in a notebook and in a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, overload

from lightningbus.api.user_errors import require_package
from lightningbus.common.printable import to_printable
from lightningbus.run.display.terminal import format_cell, render_table, render_text

MAX_SHOWN = 50
"""Rows that are shown; all are there."""
MAX_UNWRAPPED = 40
"""Characters of a cell that stay on one line in a notebook."""
LINE_WIDTH = 400
"""Characters of a row as text."""


@dataclass(frozen=True, slots=True, repr=False)
class Table(Sequence[dict[str, Any]]):
    """Rows as ClickHouse returned them; each is a mapping by column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""
    sample: tuple[Any, ...] = ()
    """A row of which an empty table has the kinds of its columns, as `df` shows them; empty: they are not known."""

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> "Table": ...

    def __getitem__(self, index: int | slice) -> "dict[str, Any] | Table":
        """Return a row as a mapping, or a slice as a table."""
        if isinstance(index, slice):
            return Table(self.columns, self.rows[index], self.title, self.sample or next(iter(self.rows), ()))
        return dict(zip(self.columns, self.rows[index], strict=True))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def column(self, name: str) -> list[Any]:
        """Return the values of a column; raises KeyError with the names there are."""
        if name not in self.columns:
            raise KeyError(f"{name!r} is no column of {', '.join(self.columns)}")
        position = self.columns.index(name)
        return [row[position] for row in self.rows]

    def df(self) -> Any:
        """Convert it to a ``pandas.DataFrame``, of the same dtypes without rows.

        Raises `UserError` where pandas is not installed.
        """
        require_package("pandas", "notebook")
        import pandas

        rows = self.rows or ((self.sample,) if self.sample else ())
        return pandas.DataFrame(list(rows), columns=list(self.columns)).iloc[: len(self.rows)]

    def __repr__(self) -> str:
        if not self.rows:
            return f"{self.title}: no rows".removeprefix(": ")
        return render_text(render_table(self.columns, self.rows[:MAX_SHOWN], self.title), LINE_WIDTH) + self._rest()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(to_printable(name))}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in self.rows[:MAX_SHOWN])
        title = f"<caption>{escape(to_printable(self.title))}</caption>" if self.title else ""
        return (
            f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{escape(self._rest().strip() or _count(len(self)))}</p>"
        )

    def _rest(self) -> str:
        return f"\n{_count(len(self))}, {MAX_SHOWN} shown" if len(self) > MAX_SHOWN else ""


def _html_cell(value: Any) -> str:
    text = format_cell(value)
    style = "white-space: nowrap" if len(text) <= MAX_UNWRAPPED else "white-space: pre-wrap; overflow-wrap: anywhere"
    return f'<td style="text-align: left; {style}">{escape(text)}</td>'


def _count(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"
