"""Docstrings of the source: ``python -m tests.style.docstrings`` measures how they open.

A docstring that opens with a question word or a preposition ("What …", "Of …") needs the code beside it to be
understood. The share of such openings has a bound for each package.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("auditor", "bus", "common", "graders", "inference", "learner", "runners", "schemas", "store")
FRAGMENT_OPENINGS = frozenset(
    ["as", "by", "for", "from", "how", "if", "of", "what", "when", "where", "which", "who", "with"]
)
MAX_PERCENTAGE = 1.5
"""Percentage of a package's docstrings that may open with one of `FRAGMENT_OPENINGS`."""

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring with its place."""

    path: Path
    line: int
    text: str

    @property
    def first_word(self) -> str:
        """First word in lower case; empty where it begins with none."""
        match = re.match(r"[`'\"(]*([A-Za-z]+)", self.text.strip())
        return match[1].lower() if match else ""

    @property
    def is_fragment(self) -> bool:
        """Whether it opens with one of `FRAGMENT_OPENINGS`."""
        return self.first_word in FRAGMENT_OPENINGS


def list_packages() -> dict[str, list[Path]]:
    """List the modules of each package, without links and templates."""
    inner = sorted(path for path in (ROOT / "lightningbus").iterdir() if path.is_dir() and not path.is_symlink())
    folders = [*(ROOT / name for name in ROLES), *(path for path in inner if any(path.glob("*.py")))]
    return {
        folder.relative_to(ROOT).as_posix(): sorted(
            path for path in folder.rglob("*.py") if "templates" not in path.relative_to(ROOT).parts
        )
        for folder in folders
    }


@cache
def parse(path: Path) -> ast.Module:
    """Parse a module once."""
    return ast.parse(path.read_text())


def find_docstrings(path: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(parse(path)):
        if not isinstance(node, Definition):
            continue
        for index, statement in enumerate(node.body):
            is_described = not index or isinstance(node.body[index - 1], ast.Assign | ast.AnnAssign)
            match statement:
                case ast.Expr(ast.Constant(str(text))) if is_described:
                    yield Docstring(path, statement.lineno, text)


def measure_fragments(paths: list[Path]) -> float:
    """Return the percentage of docstrings that open as a fragment."""
    fragments = [docstring.is_fragment for path in paths for docstring in find_docstrings(path)]
    return 100 * sum(fragments) / len(fragments) if fragments else 0.0


def main() -> None:
    """Print each package's percentage; exit with 1 where one is over its bound."""
    is_over = False
    for package, paths in list_packages().items():
        percentage, bound = measure_fragments(paths), MAX_PERCENTAGE
        is_over |= percentage > bound
        print(f"{package}: {percentage:.1f} % of docstrings open as a fragment, at most {bound:g}")
        if percentage > bound:
            for docstring in (docstring for path in paths for docstring in find_docstrings(path)):
                if docstring.is_fragment:
                    opening = " ".join(docstring.text.split()[:8])
                    print(f"  {docstring.path.relative_to(ROOT)}:{docstring.line}: {opening} …")
    raise SystemExit(1 if is_over else 0)


if __name__ == "__main__":
    main()
