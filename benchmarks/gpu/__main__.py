"""``make gpu``: everything here that needs a GPU to be known, in steps, within a time budget.

It needs one NVIDIA GPU and no network. Each step is a process with a time limit; one that fails stops no other. Figures
are written after each step, and a second run goes on where the first was stopped.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import run_step
from benchmarks.gpu.plan import NAMES, Step, choose_steps, time_limit
from benchmarks.gpu.record import Outcome, Record, read, render
from benchmarks.gpu.sizes import SCALES
from benchmarks.gpu.steps.machine import NoGpuError, check_gpu, read_environment
from benchmarks.results import RESULTS, Result

MINUTES = 40.0
OWN_RESULTS = RESULTS / "gpu.json"
PAGE = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- make gpu: begin -->", "<!-- make gpu: end -->"


async def run_steps(
    steps: Sequence[Step],
    record: Record,
    work: Path,
    scale: str,
    minutes: float,
    factor: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
) -> list[Step]:
    """Run steps while there is time, each for ``factor`` times its limit; returns those that were not begun."""
    ends = clock() + 60 * minutes
    for number, step in enumerate(steps):
        if record.machine["num_gpus"] < step.min_gpus:
            left_out = Result(step.name, None, "s", note=f"left out: it needs {step.min_gpus} GPUs")
            record.add(Outcome(step.name, step.title, 0.0, results=[left_out.as_json()]))
            continue
        limit = time_limit(step, ends - clock(), factor)
        if limit is None:
            return list(steps[number:])
        say(f"{step.name}: {step.title}, at most {limit:.0f} s")
        outcome = await run_step(step, work, scale, limit)
        record.add(outcome)
        figures = f"{len(outcome.results)} figures"
        say(f"{step.name}: {figures} in {outcome.seconds:.0f} s" + (f"; {outcome.error}" if outcome.error else ""))
    return []


def say(sentence: str) -> None:
    """Progress, on standard error: the table alone is on standard output."""
    print(sentence, file=sys.stderr, flush=True)


def rewrite(page: str, fields: dict[str, Any]) -> str:
    """The page with the tables of a run between its marks. Pure."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render(fields)}\n{END}{after}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="real", help="how large everything is")
    parser.add_argument(
        "--dry-run", action="store_const", const="dry-run", dest="scale", help="tiny models, on the CPU without a GPU"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all steps together")
    parser.add_argument("--limit-factor", type=float, default=1.0, help="times each step's limit, on a slow machine")
    parser.add_argument("--only", default="", help=f"some of {', '.join(NAMES)}, with commas")
    parser.add_argument("--again", action="store_true", help="take steps that have their figures, too")
    parser.add_argument("--work", type=Path, help="where models and logs lie; default: below runs/")
    parser.add_argument("--results", type=Path, help="default: benchmarks/results/gpu.json, of a dry run in --work")
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="take in results of another machine, and end")
    options = parser.parse_args()
    unknown = sorted(set(options.only.split(",")) - {"", *NAMES})
    if unknown:
        parser.error(f"--only: there is no step {unknown[0]}")
    if missing := [path for path in options.add if not path.is_file()]:
        parser.error(f"--add: there is no file {missing[0]}")
    return options


def add_results(paths: Sequence[Path], results: Path) -> None:
    """Put files of one other machine into the results; the last file with a step counts."""
    for path in paths:
        fields = read(path)
        record = Record(results, fields["machine"])
        for outcome in fields["steps"]:
            record.add(Outcome(**outcome))


def show(results: Path) -> dict[str, Any]:
    """Print the tables, and write them into the page, or beside results that are not this repository's."""
    fields = read(results)
    print(render(fields))
    if results.resolve() == OWN_RESULTS:
        PAGE.write_text(rewrite(PAGE.read_text(), fields))
    else:
        results.with_suffix(".md").write_text(render(fields) + "\n")
    return fields


def main() -> None:
    """Exit code 1: a step has not all of its figures; 2: there is no GPU."""
    options = parse()
    is_dry = options.scale == "dry-run"
    if options.add:
        results = options.results or OWN_RESULTS
        add_results(options.add, results)
        show(results)
        return
    if not is_dry:
        try:
            check_gpu()
        except NoGpuError as error:
            say(str(error))
            raise SystemExit(2) from None
    work = (options.work or Path("runs") / ("gpu-dry-run" if is_dry else "gpu")).resolve()
    results = options.results or (work / "results.json" if is_dry else OWN_RESULTS)
    record = Record(results, read_environment())
    if record.was_of_another_machine:
        say(f"{results} has figures of another GPU or other versions: they are replaced")
    steps = choose_steps(options.only.split(",") if options.only else (), () if options.again else record.completed)
    rest = asyncio.run(run_steps(steps, record, work, options.scale, options.minutes, options.limit_factor))
    fields = show(results)
    if rest:
        say(f"no time was left for {', '.join(step.name for step in rest)}: the same command goes on there")
    names = {step.name for step in steps}
    raise SystemExit(
        1 if rest or any(each["error"] for each in fields.get("steps", []) if each["name"] in names) else 0
    )


if __name__ == "__main__":
    main()
