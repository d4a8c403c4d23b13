"""Steps of ``make gpu`` in three calls of minutes: ``python -m deploy.airgapped.calls learner --out DIR --work DIR``.

After each step the output folder has the results, their table and the logs. So a call that is cut off loses one step.
"""

import argparse
import asyncio
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.__main__ import run_steps, say
from benchmarks.gpu.plan import Step, choose_steps
from benchmarks.gpu.record import Record, read, render
from benchmarks.gpu.steps.machine import read_environment

CALLS = {
    "learner": (
        "machine", "verl-small", "training-small-defaults", "training-small-wide", "training-small-wide-kept",
        "plain-small", "verl-large", "training-large-defaults", "plain-large", "training-large-lora",
    ),
    "engine": ("generation-small", "agreement-small", "swap-recompute", "weights-small", "generation-large"),
    "loop": ("loop-small", "demo", "pretrained"),
}  # fmt: skip
"""The most important steps come first."""
LIMIT_FACTOR = 0.5
"""Multiple of each step's limit: these models are smaller, and time is short."""
FIRST_ENGINE = "generation-small"
"""Step that finds out whether an engine starts."""
RESULTS = "gpu.json"
SCALE_FILE = "scale"
"""File below the work folder with the sizes that later calls take."""
LOGS = (
    "steps/*",
    "*/node/**/*.log",
    "*/runs/*/results.json",
    "*/runs/*/logs/*",
    "*/demo/results.json",
    "*/demo/logs/*",
)
MAX_LOG_BYTES = 4_000_000


def take(names: Sequence[str], scale: str, minutes: float, work: Path, out: Path, factor: float = LIMIT_FACTOR) -> bool:
    """Take steps within the time; returns whether each has its figures."""
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * minutes
    record = Record(out / RESULTS, read_environment())
    steps = choose_steps(names, record.completed)

    def measure(step: Step) -> None:
        left = (ends - time.monotonic()) / 60
        if asyncio.run(run_steps([step], record, work, read_scale(work, scale), left, factor)):
            say(f"{step.name}: no time was left")
        save(out, work)

    for step in steps:
        measure(step)
        if step.name == FIRST_ENGINE and scale == "short" and has_no_figures(read(out / RESULTS), step.name):
            say("the engine did not start: again without CUDA graphs, with attention by Triton")
            (work / SCALE_FILE).write_text("short-eager")
            measure(step)
    return {step.name for step in steps} <= record.completed


def has_no_figures(fields: Mapping[str, Any], name: str) -> bool:
    """Whether a step was taken and ended without any figure. Pure."""
    return any(step["name"] == name and not step["results"] for step in fields.get("steps", ()))


def read_scale(work: Path, scale: str) -> str:
    """Return the sizes to take: those of an earlier call that found out that engines do not start with others."""
    path = work / SCALE_FILE
    return path.read_text() if scale == "short" and path.exists() else scale


def save(out: Path, work: Path) -> None:
    """Write table and logs of all steps so far."""
    (out / "table.md").write_text(render(read(out / RESULTS)) + "\n")
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        for path in list_logs(work):
            archive.add(path, path.relative_to(work))


def list_logs(work: Path) -> Iterator[Path]:
    """Yield the logs of steps and of the roles that they started, but for large ones."""
    for pattern in LOGS:
        for path in sorted(work.glob(pattern)):
            if path.is_file() and path.stat().st_size <= MAX_LOG_BYTES:
                yield path


def main() -> None:
    """Exit with 1 if a step has not all of its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--out", type=Path, required=True, help="folder for results, table and logs")
    parser.add_argument("--work", type=Path, required=True, help="folder for models and runs, kept between calls")
    parser.add_argument("--minutes", type=float, default=5.0, help="of all steps together")
    parser.add_argument("--only", default="", help="some of the call's steps, with commas")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, on the CPU without a GPU")
    options = parser.parse_args()
    names = [name for name in CALLS[options.call] if not options.only or name in options.only.split(",")]
    if not names:
        parser.error(f"--only: the call {options.call} has {', '.join(CALLS[options.call])}")
    scale, factor = ("dry-run", 3.0) if options.dry_run else ("short", LIMIT_FACTOR)
    is_whole = take(names, scale, options.minutes, options.work.resolve(), options.out.resolve(), factor)
    print(render(read(options.out / RESULTS)))
    raise SystemExit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
