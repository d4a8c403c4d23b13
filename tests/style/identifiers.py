"""Words that name nothing are no identifiers: ``python -m tests.style.identifiers`` lists where one is bound.

A name that could stand for anything makes a reader look up what it holds. The honest exceptions are listed by file.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = frozenset(
    ["said", "told", "heard", "found", "made", "held", "one", "given", "asked", "answered", "shown", "own"]
)
EXCEPTIONS: dict[str, frozenset[str]] = {}
"""Path of a module -> words that are right there, such as a vLLM argument of that name."""


JS_BINDING = re.compile(r"\b(?:const|let|var|function)\s+(\w+)|\(?\b(\w+)\)?\s*=>")
"""A name that JavaScript binds by a declaration, or as the parameter of an arrow function."""


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


def bound_names_of_script(text: str) -> Iterator[tuple[str, int]]:
    """The names that `JS_BINDING` finds in JavaScript, with their lines."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in JS_BINDING.finditer(line):
            yield match[1] or match[2], number


def find_empty_words(path: Path) -> list[str]:
    """Lines of one module or script that bind a word of `WORDS`, as ``path:line: word``."""
    relative = path.relative_to(ROOT).as_posix()
    allowed = EXCEPTIONS.get(relative, frozenset())
    text = path.read_text()
    names = bound_names(ast.parse(text)) if path.suffix == ".py" else bound_names_of_script(text)
    return [
        f"{relative}:{line}: {name}"
        for name, line in names
        if name.strip("_") in WORDS and name.strip("_") not in allowed
    ]


def list_sources() -> list[Path]:
    """Every module and script of the project; what is installed below a hidden directory is not ours."""
    paths = [path for pattern in ("*.py", "*.js") for path in ROOT.rglob(pattern)]
    return sorted(
        path
        for path in paths
        if not any(part.startswith(".") or part in ("node_modules", "site") for part in path.relative_to(ROOT).parts)
    )


def main() -> None:
    """Print every place; exit with 1 if there is one."""
    places = [place for path in list_sources() for place in find_empty_words(path)]
    print("\n".join(places) or "no empty word names anything")
    raise SystemExit(1 if places else 0)


if __name__ == "__main__":
    main()
