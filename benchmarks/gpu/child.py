"""One step in a process of its own: ``python -m benchmarks.gpu.child STEP FILE`` adds figures to the file."""

import argparse
import asyncio
import faulthandler
import importlib
import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.context import Context
from benchmarks.gpu.plan import NAMES, STEPS, Step
from benchmarks.gpu.record import Outcome
from benchmarks.gpu.sizes import SCALES
from benchmarks.results import Result
from lightningbus.common.processes.subprocesses import spawn, terminate

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 30.0
INSTALLED = re.compile(r'"[^"]*/(site-packages|python3\.\d+)/')
"""Beginning of a path in a machine's folders of packages."""
SPARE_SECONDS = 3.0
"""Seconds before the end of a step at which its calls are written to its log."""
MAX_ERROR_LETTERS = 400


async def run_step(step: Step, work: Path, scale: str, limit_seconds: float) -> Outcome:
    """Run a step in one of `SCALES` until it ends or its time is over; what it measured until then counts."""
    directory = work / "steps"
    directory.mkdir(parents=True, exist_ok=True)
    figures, log = directory / f"{step.name}.jsonl", directory / f"{step.name}.log"
    figures.write_text("")
    command = [sys.executable, "-m", "benchmarks.gpu.child", step.name, str(figures), "--limit", str(limit_seconds)]
    started = time.monotonic()
    with log.open("wb") as out:
        process = await spawn(
            *command, "--work", str(work), "--scale", scale, pdeathsig=signal.SIGKILL, cwd=ROOT, stdout=out, stderr=out
        )
        try:
            async with asyncio.timeout(limit_seconds):
                code = await process.wait()
            error = "" if code == 0 else f"ended with {code}"
        except TimeoutError:
            error = f"not done after {limit_seconds:.0f} s"
        finally:
            await terminate(process, STOP_SECONDS)
    rows, reason = split_lines(figures.read_text())
    if not error:
        shutil.rmtree(work / step.name, ignore_errors=True)  # weight versions, tens of GiB in all
    if error and (reason or log.stat().st_size):
        text = log.read_text(errors="replace")
        error = f"{error}: {reason or find_call(text) or last_line(text)}"
    return Outcome(step.name, step.title, round(time.monotonic() - started, 1), error, rows)


def split_lines(text: str) -> tuple[list[dict[str, Any]], str]:
    """Figures, and the error if a line has one; a line that was cut off counts for nothing. Pure."""
    rows, error = [], ""
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        fields = json.loads(line)
        error = fields.get("error") or error
        if "case" in fields:
            rows.append(fields)
    return rows, error


def last_line(log: str) -> str:
    """The last line of a log that says something, shortened. Pure."""
    return next((line.strip()[:MAX_ERROR_LETTERS] for line in reversed(log.splitlines()) if line.strip()), "")


def find_call(log: str) -> str:
    """The innermost call of the main thread when the time was over, of `faulthandler`'s text; empty without. Pure."""
    _, mark, stack = log.rpartition("(most recent call first):\n")
    return INSTALLED.sub('"', stack.partition("\n")[0].strip()) if mark else ""


def describe_error(error: BaseException) -> str:
    """A sentence of an exception; of a group, that of its first member. Pure."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_ERROR_LETTERS]


def measure(step: Step, figures: Path, work: Path, scale: str) -> None:
    """Call the step's function here; its error becomes a line of the file, and is raised."""
    with figures.open("a") as out:

        def write(fields: Mapping[str, Any]) -> None:
            out.write(json.dumps(fields) + "\n")
            out.flush()

        def report(result: Result) -> None:
            write(result.as_json())

        context = Context(SCALES[scale], work, step.name, report)
        module, _, function = step.measure.partition(":")
        try:
            getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(context, **step.arguments)
        except BaseException as error:
            write({"error": describe_error(error)})
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=NAMES)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scale", choices=SCALES, default="real")
    parser.add_argument("--limit", type=float, help="seconds after which the log gets the calls that have not returned")
    options = parser.parse_args()
    if options.limit is not None:
        faulthandler.dump_traceback_later(max(1.0, options.limit - SPARE_SECONDS))
    step = next(step for step in STEPS if step.name == options.step)
    measure(step, options.figures, options.work, options.scale)


if __name__ == "__main__":
    main()
