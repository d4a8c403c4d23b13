"""``make bench-prompts``: how soon a prompt is found, and weights alone beside prompts and weights in turns.

Rows are added to ``results/prompts.json`` job by job, so that a benchmark that was stopped goes on.
"""

import argparse
import asyncio
import itertools
import json
import sys
from pathlib import Path

from benchmarks.results import RESULTS
from experiments.prompts import scripted
from experiments.prompts.job import MODES, measure
from experiments.prompts.scripted import JOBS, MATH_JOB
from experiments.prompts.tables import Row, key_of, tables

PATH = RESULTS / "prompts.json"
PAGE = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- make bench-prompts: begin -->", "<!-- make bench-prompts: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--modes", nargs="+", choices=("scripted", *MODES), default=["scripted", *MODES])
    parser.add_argument("--work", type=Path, default=Path("runs/bench-prompts"))
    options = parser.parse_args()
    rows: list[Row] = json.loads(PATH.read_text()) if PATH.exists() else []
    work = options.work.resolve()
    kept = set(map(key_of, rows))
    for mode, seed in itertools.product(options.modes, options.seeds):
        for job in JOBS.values() if mode == "scripted" else (MATH_JOB,):
            if (mode, job.name, seed) in kept:
                continue
            running = scripted.measure(job, seed, work) if mode == "scripted" else measure(mode, seed, work)
            row = asyncio.run(running)
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows = sorted([*rows, row], key=key_of)
            PATH.write_text(json.dumps(rows, indent=1) + "\n")
    text = tables(rows)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    print(text)


if __name__ == "__main__":
    main()
