"""``python -m benchmarks.before_after [--commit C] [NAME…]``: the figures of a commit beside those of the last run.

Two runs on a shared machine differ by more than most changes do. So of a figure with a ceiling or a peer the ratios are
compared, which were measured within one run; a figure without either is shown as it is.
"""

import argparse
import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import RESULTS, format_cell

Row = dict[str, Any]
COMPARED = {"ratio_to_peer": "times the peer", "ratio_to_ceiling": "of the ceiling", "value": ""}
"""What is compared of a row: the first that both runs have. In words, empty: the figure itself."""
HEAD = ["| case | what | before | after | after / before |", "|---|---|---|---|---|"]


class Change(NamedTuple):
    """A figure before and after."""

    case: str
    what: str
    before: float
    after: float


def find_changes(before: Iterable[Row], after: Iterable[Row]) -> Iterator[Change]:
    """The figures that both runs have, in the order of the later one. Pure."""
    earlier = {_key(row): row for row in before}
    for row in after:
        if (old := earlier.get(_key(row))) is None:
            continue
        for field, words in COMPARED.items():
            if old.get(field) is not None and row.get(field) is not None:
                yield Change(str(row["case"]), words or str(row["unit"]), float(old[field]), float(row[field]))
                break


def render(changes: Iterable[Change]) -> str:
    """As Markdown. Pure."""
    lines = list(HEAD)
    for case, what, before, after in changes:
        cells = map(format_cell, (case, what, before, after, after / before if before else None))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _key(row: Row) -> tuple[Any, ...]:
    return row["case"], row.get("rollouts")  # the same question is asked of runs of two sizes


def read_at(commit: str, path: Path) -> list[Row]:
    """The rows of a file as of a commit; nothing where it was not there."""
    command = ["git", "show", f"{commit}:./{path.name}"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else []


def compare(names: Sequence[str], commit: str = "HEAD") -> str:
    """The tables of some benchmarks, as of a commit and now."""
    parts = []
    for name in names:
        path = RESULTS / f"{name}.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        if rows and isinstance(rows, list) and "case" in rows[0]:
            changes = [*find_changes(read_at(commit, path), rows)]
            parts.append(f"{name}, {commit} and now:\n\n{render(changes)}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in RESULTS.glob("*.json")))
    parser.add_argument("--commit", default="HEAD", help="what to compare with")
    options = parser.parse_args()
    print(compare(options.names, options.commit))


if __name__ == "__main__":
    main()
