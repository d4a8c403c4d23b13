"""What a benchmark measured: one form for all, written beside the page that shows it."""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Result:
    """One figure, with what this machine alone could do in the same minute and what a peer did, in the same unit."""

    case: str
    value: float | None
    """None: this machine cannot say; ``note`` says why."""
    unit: str
    ceiling: float | None = None
    peer: float | None = None
    note: str = ""

    def as_json(self) -> dict[str, object]:
        """With the ratios."""
        return {
            **asdict(self),
            "ratio_to_ceiling": ratio(self.value, self.ceiling),
            "ratio_to_peer": ratio(self.value, self.peer),
        }


def ratio(value: float | None, other: float | None) -> float | None:
    """``value / other``, where both are known."""
    return round(value / other, 4) if value is not None and other else None


def write(name: str, results: Iterable[Result], whole: bool = True) -> None:
    """Into ``results/<name>.json``; unless it is the ``whole``, only the cases measured now are replaced there."""
    new = {result.case: result.as_json() for result in results}
    kept = [] if whole else read(name)
    rows = [new.pop(str(item["case"]), item) for item in kept]
    (RESULTS / f"{name}.json").write_text(json.dumps([*rows, *new.values()], indent=1) + "\n")


def read(name: str) -> list[dict[str, object]]:
    """What was written; nothing if it never was."""
    path = RESULTS / f"{name}.json"
    results: list[dict[str, object]] = json.loads(path.read_text()) if path.exists() else []
    return results


def table(results: Iterable[dict[str, object]]) -> str:
    """As Markdown."""
    lines = ["| case | value | unit | ceiling | of it | peer | times it |", "|---|---|---|---|---|---|---|"]
    for result in results:
        columns = [
            result["value"],
            result["unit"],
            result["ceiling"],
            result["ratio_to_ceiling"],
            result["peer"],
            result["ratio_to_peer"],
        ]
        note = f" ({result['note']})" if result.get("note") else ""
        lines.append(f"| {result['case']}{note} | " + " | ".join(map(format_cell, columns)) + " |")
    return "\n".join(lines)


def format_cell(value: object) -> str:
    """A figure in three digits; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def machine() -> str:
    """The machine, in words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    text = f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB"
    return f"{text}, {platform.system()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def fill_page(page: str, begin: str, table: str, end: str) -> str:
    """Return a page with a table on lines of its own between two marks."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
