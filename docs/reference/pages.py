"""The generated parts of pages: between two comments of a page, and how each is made."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from docs.reference.alert_rules import render_alert_rules
from docs.reference.commands import render_commands
from docs.reference.events import render_events
from docs.reference.metrics import render_metrics
from docs.reference.results import render_results
from docs.reference.settings import render_settings
from docs.reference.step_metrics import render_step_metrics

DOCS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class GeneratedPart:
    """The text between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` of a page."""

    page: Path
    name: str
    render: Callable[[], str]

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(<!-- {self.name}: begin -->\n)(.*)(\n<!-- {self.name}: end -->)", re.DOTALL)

    def read(self) -> str:
        """Return the text that the page has now; raises ValueError for a page without the comments."""
        match = self._pattern.search(self.page.read_text("utf-8"))
        if match is None:
            raise ValueError(
                f"{self.page} has no comments `<!-- {self.name}: begin -->` and `<!-- {self.name}: end -->`"
            )
        return match[2]

    def write(self) -> None:
        """Write the text as the code has it now."""
        rendered = self.render()
        text = self.page.read_text("utf-8")
        self.page.write_text(self._pattern.sub(lambda match: match[1] + rendered + match[3], text), "utf-8")


PARTS = (
    GeneratedPart(DOCS / "cli.md", "commands", render_commands),
    GeneratedPart(DOCS / "settings.md", "settings", render_settings),
    GeneratedPart(DOCS / "wire.md", "events", render_events),
    GeneratedPart(DOCS / "operations.md", "metrics", render_metrics),
    GeneratedPart(DOCS / "store.md", "step metrics", render_step_metrics),
    GeneratedPart(DOCS / "operations.md", "alert-rules", render_alert_rules),
    GeneratedPart(DOCS / "operations.md", "results", render_results),
)
