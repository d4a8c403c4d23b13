"""The problems of a benchmark, made by the examples' own scripts."""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"tried": 24, "compared": 16, "measured": 100}
"""Problems that prompts are tried on, those that decide on a release, and those that measure what came out."""


def example_module(folder: Path, name: str) -> ModuleType:
    """A module of an example, with those it imports beside it; other examples have modules of the same names."""
    before = set(sys.modules)
    kept_path = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = kept_path
        for new in set(sys.modules) - before:
            if (getattr(sys.modules[new], "__file__", None) or "").startswith(str(ROOT / "examples")):
                del sys.modules[new]


def problem_files(work: Path) -> list[Path]:
    """Those of `SIZES`."""
    return [work / f"{name}.jsonl" for name in SIZES]


def read_inputs(path: Path) -> list[Any]:
    """Inputs of a task file."""
    return [json.loads(line)["input"] for line in path.read_text().splitlines()]


async def make_problems(job: str, work: Path, seed: int) -> None:
    """Write the problems of a job and seed; what is there stays."""
    if not (work / "measured.jsonl").exists():
        await asyncio.to_thread(_make_math if job == "math_tools" else _make_sql, work, seed)


def _make_math(work: Path, seed: int) -> None:
    records = example_module(ROOT / "examples" / "math_tools", "data").make_records(4 * sum(SIZES.values()), seed)
    two_steps = [each for each in records if each["chain"].count("<gadget") == 2]
    _write(work / "records.jsonl", two_steps)
    inputs = ({"question": each["question"], "result": each["result"], "steps": 2} for each in two_steps)
    _split(work, inputs)


def _make_sql(work: Path, seed: int) -> None:
    example = ROOT / "examples" / "text_to_sql"
    example_module(example, "stand_in").make(work / "spider", sum(SIZES.values()), 0, seed)
    records = json.loads((work / "spider" / "train_spider.json").read_text())
    databases = work / "spider" / "database"
    policies = example_module(example, "policy")

    def inputs() -> Iterable[Any]:
        for each in records:
            path = databases / each["db_id"] / f"{each['db_id']}.sqlite"
            yield {"question": each["question"], "database": str(path), "gold": each["query"]}

    known = list(inputs())
    for task in known:
        policies.habit(task)  # every problem has a mistake that fits
    _split(work, known)


def _split(work: Path, inputs: Iterable[Any]) -> None:
    rest = iter(inputs)
    for name, size in SIZES.items():
        _write(work / f"{name}.jsonl", ({"id": f"{name}-{n}", "input": next(rest)} for n in range(size)))


def _write(path: Path, lines: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
