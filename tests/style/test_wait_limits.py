"""Tests wait for events; a limit to that is no shorter than a busy machine takes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.polling import HANG_SECONDS

TESTS = Path(__file__).parents[1]
LIMITED = {
    "timeout": 0,
    "wait_for": 1,
    "wait": 0,
    "join": 0,
    "result": 0,
    "run": None,
    "to_thread": None,
    "communicate": None,
}
"""Calls that take a limit in seconds: the position of it, if it has one; all take it as ``timeout``."""
MOMENT_SECONDS = 1.0
"""A shorter limit is a moment in which nothing is to happen."""


def find_short_limits(source: str) -> Iterator[tuple[int, float]]:
    """Lines with a limit that a busy machine may reach, unless it is to be reached. Pure."""
    tree = ast.parse(source)
    expected: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            if any("(TimeoutError" in ast.unparse(item.context_expr) for item in node.items):
                expected.update(ast.walk(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.timeout":
            expected.add(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in expected and isinstance(node.func, ast.Attribute):
            for seconds in _list_limits(node, node.func.attr):
                if MOMENT_SECONDS <= seconds < HANG_SECONDS / 4:
                    yield node.lineno, seconds


def _list_limits(call: ast.Call, name: str) -> Iterator[float]:
    """Limits of a call that are written as a number."""
    if name in LIMITED:
        position = LIMITED[name]
        values = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
        values += [] if position is None else call.args[position : position + 1]
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield value.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("asyncio.timeout(10)", [10]),
        ("asyncio.timeout(HANG_SECONDS)", []),
        ("asyncio.wait_for(item, 5)", [5]),
        ("asyncio.wait({item}, timeout=0.2)", []),
        ("process.communicate(timeout=30)", [30]),
        ("with pytest.raises(TimeoutError):\n    asyncio.wait_for(item, 5)", []),
        ("@pytest.mark.timeout(20)\ndef test(): ...", []),
    ],
)
def test_a_short_limit_is_found_unless_it_is_to_be_reached(source: str, expected: list[float]) -> None:
    assert [seconds for _, seconds in find_short_limits(source)] == expected


def test_no_limit_is_as_short_as_a_busy_machine_may_take() -> None:
    short_limits = {
        f"{path.relative_to(TESTS)}:{line}": seconds
        for path in sorted(TESTS.rglob("*.py"))
        for line, seconds in find_short_limits(path.read_text())
    }
    assert short_limits == {}, "a limit to waiting is HANG_SECONDS of tests/polling.py"
