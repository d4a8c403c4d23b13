"""What the math agents are put through: one problem each for a right policy, a wrong one, and what is no answer."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.examples.endpoint import Answer, module

OURS = {"bus", "common", "inference", "learner", "lightningbus", "runners", "schemas", "store"}
NAMES_US = re.compile(r"lightning|\bLB\b|\blb[-_]", re.IGNORECASE)
DRIVER = """
import asyncio, inspect, json, sys
import agent
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)

def solve(task):
    reward = agent.solve(task)
    return loop.run_until_complete(reward) if inspect.isawaitable(reward) else reward

print(json.dumps([solve(task) for task in json.load(sys.stdin)]))
"""
"""Solves tasks one after the other, as a runner's process does."""

records = module("math_tools", "data").make_records(24, seed=7)
Policy = module("math_tools", "policy").Policy


def text(content: str | None) -> Answer:
    """Always says this."""
    return lambda messages: {"role": "assistant", "content": content}


def calls(name: str, arguments: str) -> Answer:
    """Always calls this tool."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "tool_calls": [{"id": f"call-{len(messages)}", **call}]}

    return answer


CASES: dict[str, tuple[Answer, float]] = {
    "right": (Policy(records).answer, 1.0),
    "wrong sign": (Policy(records, {"wrong_sign": 1.0}, seed=1).answer, 0.0),
    "guess": (Policy(records, {"guess": 1.0}, seed=1).answer, 0.0),
    "no form": (Policy(records, {"no_form": 1.0}).answer, 0.0),
    "broken expression": (Policy(records, {"broken": 1.0}).answer, 0.0),
    "malformed call": (Policy(records, {"malformed": 1.0}).answer, 0.0),
    "nonsense": (text("</s> answer answer: answer: }{ \u0000 7?"), 0.0),
    "empty": (text(""), 0.0),
    "nothing": (text(None), 0.0),
    "list": (calls("calculator", "[1]"), 0.0),
    "number": (calls("calculator", "12"), 0.0),
    "null": (calls("calculator", "null"), 0.0),
    "no arguments": (calls("calculator", ""), 0.0),
    "no expression": (calls("calculator", '{"question": "12 * 3"}'), 0.0),
    "no text": (calls("calculator", '{"expression": 12}'), 0.0),
    "code": (calls("calculator", json.dumps({"expression": "__import__('os').getpid()"})), 0.0),
    "unknown tool": (calls("search", '{"expression": "1 + 1"}'), 0.0),
    "no tool": (calls("", "{}"), 0.0),
}
PROBLEMS = dict(zip(CASES, records, strict=False))


def problem(case: str) -> dict[str, str]:
    """The task's input."""
    record = PROBLEMS[case]
    return {"question": record["question"], "result": record["result"]}


def scripted(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Answers each case's problem as the case says."""
    request = json.dumps(messages)
    return next(CASES[case][0](messages) for case, record in PROBLEMS.items() if record["question"] in request)


def imports_of(file: Path) -> set[str]:
    """Top-level names a Python file imports."""
    return set(_imported(ast.parse(file.read_text())))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
