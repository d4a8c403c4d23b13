"""Shows untrusted text on a terminal and in a notebook, with control sequences escaped."""

import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lightningbus.common.printable import to_printable

TEXT_WIDTH = 120
"""Characters of a line for output without a terminal."""
HTML_FORMAT = "<pre style='font-family: monospace; line-height: 1.35; white-space: pre-wrap; overflow-wrap: anywhere'>{code}</pre>"


class Terminal(Console):
    """A console that escapes control characters in text, so that only the console itself controls the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as `rich.console.Console.render`, with control characters of the text escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=to_printable(segment.text))


def output(**options: Any) -> Terminal:
    """Return a terminal on standard output; a pipe gets 400 columns, so that lines are not wrapped."""
    terminal = Terminal(**options)
    if not terminal.is_terminal:
        terminal.width = 400
    return terminal


def render_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> Table:
    """Build a table to print, whose cells are short forms of their values."""
    table = Table(title=title or None, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(Text(to_printable(column)))
    for row in rows:
        table.add_row(*(Text(format_cell(value)) for value in row))
    return table


def format_cell(value: Any) -> str:
    """Format a value for a table: numbers in four digits, times in seconds."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value.strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else to_printable(str(value))


def render_text(renderable: RenderableType, width: int = TEXT_WIDTH) -> str:
    """Render as plain text, such as the ``repr`` of an object."""
    file = io.StringIO()
    # A kernel's environment asks for colours, which are control characters here.
    plain = Terminal(
        file=file, width=width, highlight=False, force_jupyter=False, force_terminal=False, color_system=None
    )
    plain.print(renderable, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().split("\n"))


def render_html(renderable: RenderableType, width: int = TEXT_WIDTH) -> str:
    """Render as HTML with all text escaped, for a notebook's light and dark pages."""
    console = Terminal(file=io.StringIO(), width=width, highlight=False, force_jupyter=False, record=True)
    console.print(renderable, crop=False)
    return console.export_html(inline_styles=True, code_format=HTML_FORMAT)
