"""``make bench-credit``: steps to a target reward, by credit method, in two jobs with five seeds.

A row is added to ``results/credit.json`` run by run, so that a benchmark that was stopped goes on, within
a run too. The table is made of what is there.
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.asynchrony.job import read
from experiments.credit.job import JOBS, METHODS, STEPS, key_of, prepare, steps_to, target_of, train

RESULTS = Path(__file__).resolve().parents[1] / "results" / "credit.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--max-steps", type=int, default=STEPS, help="a short try; give it --results of its own too")
    parser.add_argument("--work", type=Path, default=Path("runs/bench-credit"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = read(options.results)
    for seed, job, method in itertools.product(options.seeds, options.jobs, options.methods):
        if (job, method, seed) in map(key_of, rows):
            continue
        prepare(job)
        rows.append(train(job, method, seed, options.work.resolve(), options.max_steps))
        options.results.write_text(json.dumps(rows, indent=1) + "\n")
        print(table(rows), flush=True)
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """One line per job and method that has runs, means over its seeds."""
    if not rows:
        return "No run has been made yet."
    lines = [
        "| job | credit | runs | target | steps to it (per seed) | mean | held-out reward at the start | at the end |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for job, method in itertools.product(JOBS, METHODS):
        of_job = [row for row in rows if row["job"] == job]
        of_method = sorted((row for row in of_job if row["method"] == method), key=lambda row: row["seed"])
        if not of_method:
            continue
        target = target_of(of_job)
        steps = [None if target is None else steps_to(row["curve"], target) for row in of_method]
        reached = [count for count in steps if count is not None]
        per_seed = ", ".join("never" if count is None else str(count) for count in steps) if target else "–"
        average = f"{mean(reached):.1f}" if len(reached) == len(steps) else "–"
        start, end = (mean(row["curve"][at][1] for row in of_method) for at in (0, -1))
        lines.append(
            f"| {job} | {method} | {len(of_method)} | {'–' if target is None else target} | {per_seed} | {average} "
            f"| {start:.2f} | {end:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
