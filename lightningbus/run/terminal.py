"""Where commands print what others wrote."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from common.printable import to_printable


class Terminal(Console):
    """A console that steers the terminal itself, and shows text that would."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `rich.console.Console.render`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=to_printable(segment.text))


def output(**options: Any) -> Terminal:
    """Standard output; a pipe has no width to fit into."""
    terminal = Terminal(**options)
    if not terminal.is_terminal:
        terminal.width = 400
    return terminal
