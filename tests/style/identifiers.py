"""Words that name nothing are no identifiers: ``python -m tests.style.identifiers`` lists where one is bound.

A name that could stand for anything makes a reader look up what it holds. The honest exceptions are listed by file.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("schemas", "common", "bus", "runners", "store", "learner", "inference", "lightningbus")
WORDS = frozenset(
    ["said", "told", "heard", "found", "made", "held", "one", "given", "asked", "answered", "shown", "own"]
)
EXCEPTIONS: dict[str, frozenset[str]] = {}
"""Path of a module -> words that are right there, such as a vLLM argument of that name."""


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module binds, with its line: functions, classes, parameters, variables, attributes of self."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno


def find_empty_words(path: Path) -> list[str]:
    """Lines of one module that bind a word of `WORDS`, as ``path:line: word``."""
    relative = path.relative_to(ROOT).as_posix()
    allowed = EXCEPTIONS.get(relative, frozenset())
    names = bound_names(ast.parse(path.read_text()))
    return [
        f"{relative}:{line}: {name}"
        for name, line in names
        if name.strip("_") in WORDS and name.strip("_") not in allowed
    ]


def main() -> None:
    """Print every place; exit with 1 if there is one."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    places = [place for path in paths for place in find_empty_words(path)]
    print("\n".join(places) or "no empty word names anything")
    raise SystemExit(1 if places else 0)


if __name__ == "__main__":
    sys.exit(main())
