"""The Python API for code without an event loop, written from the async one: ``lightningbus/api/blocking.py``.

The result is committed, because editors and the site read signatures and docstrings from the source.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

API = Path(__file__).resolve().parents[2] / "lightningbus" / "api"
TARGET = API / "blocking.py"
SOURCES = ("training.py", "sessions/async_session.py", "evaluation_job.py")
"""Modules of the async forms, in the order in which their blocking forms are written."""
NAMES = {
    "atrain": "train",
    "aevaluate": "evaluate",
    "aserve": "serve",
    "aconnect": "connect",
    "AsyncSession": "Session",
    "CancelledError": "RunInterrupted",
}
"""Names of the async forms, in signatures and docstrings, and of the blocking ones."""
GUARDS = {"atrain": "as_run_interrupted(options, settings, resume)"}
"""Context managers around the call of an async form."""
HEAD = '''\
"""`train`, `evaluate`, `serve`, `connect` for code without an event loop, and for a notebook whose event loop is busy.

Written by ``python -m docs.reference`` from the async forms, which hold the work and the docstrings.
"""

from types import TracebackType
from typing import Self

from lightningbus.common.event_loop import run_blocking
'''
SESSION_METHODS = """\
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._session).removeprefix("Async")
"""
_NAME = re.compile(rf"\b({'|'.join(NAMES)})\b")


def render_blocking_api() -> str:
    """Return the source of the module."""
    trees = {name: ast.parse((API / name).read_text("utf-8")) for name in SOURCES}
    imports = [line for name, tree in trees.items() for line in _import_lines(name, tree)]
    definitions = [text for tree in trees.values() for node in tree.body for text in _definitions(node)]
    return _format("\n".join([HEAD, *imports, "", *definitions]))


def _import_lines(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield every import that the definitions may need; those that they do not are dropped afterwards."""
    yield from (ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    module = f"lightningbus.api.{name.removesuffix('.py').replace('/', '.')}"
    kinds = (ast.AsyncFunctionDef, ast.FunctionDef, ast.ClassDef)
    yield f"from {module} import {', '.join(node.name for node in tree.body if isinstance(node, kinds))}"


def _definitions(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.AsyncFunctionDef) and node.name in NAMES:
        call = f"{node.name}({_arguments(node.args)})"
        is_session = isinstance(node.returns, ast.Name) and node.returns.id in NAMES
        body = f"return Session(run_blocking({call}))" if is_session else f"return run_blocking({call})"
        if node.name in GUARDS:
            body = f"with {GUARDS[node.name]}:\n    {body}"
        yield _function(node, body)
    elif isinstance(node, ast.ClassDef) and node.name in NAMES:
        yield f"class {NAMES[node.name]}:\n    {_docstring(node)}\n\n{SESSION_METHODS}"
        for method in node.body:
            if isinstance(method, ast.AsyncFunctionDef) and not method.name.startswith("_"):
                body = f"return run_blocking(self._session.{method.name}({_arguments(method.args)}))"
                yield _indent(_function(method, body))


def _function(node: ast.AsyncFunctionDef, body: str) -> str:
    """Return the blocking form of a function: its own signature and docstring above ``body``."""
    name = NAMES.get(node.name, node.name)
    signature = f"def {name}({ast.unparse(node.args)}) -> {_rename(ast.unparse(node.returns or ast.Constant(None)))}:"
    decorators = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
    return f"{decorators}{signature}\n    {_docstring(node)}\n{_indent(body)}\n"


def _docstring(node: ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """Return the docstring as the source has it, with the names of the blocking forms."""
    return f'"""{_rename(ast.get_docstring(node, clean=False) or "")}"""'


def _rename(text: str) -> str:
    return _NAME.sub(lambda match: NAMES[match[1]], text)


def _arguments(args: ast.arguments) -> str:
    """Return the arguments with which a function of these parameters calls another."""
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args) if arg.arg != "self"]
    keywords = [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    rest = [f"*{args.vararg.arg}"] if args.vararg else []
    return ", ".join([*positional, *rest, *keywords, *([f"**{args.kwarg.arg}"] if args.kwarg else [])])


def _indent(text: str) -> str:
    """Indent a function for its class; the formatter puts the docstring's lines right."""
    return "\n".join(f"    {line}" if line else line for line in text.split("\n"))


def _format(source: str) -> str:
    """Drop unused imports, sort the others and format, as ``make format`` does."""
    name = str(TARGET)
    for command in (*(["check", "--fix-only", "--select", rule] for rule in ("F401", "I")), ["format"]):
        arguments = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--quiet",
            "--line-length",
            "120",
            "--stdin-filename",
            name,
        ]
        source = subprocess.run([*arguments, "-"], input=source, capture_output=True, text=True, check=True).stdout
    return source
