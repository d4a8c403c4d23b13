"""``python -m experiments.task_selection``: tokens to the same accuracy, by the choice of tasks, with five seeds.

A row a run is added to ``results/task_selection.json``, so that an experiment that was stopped goes on.
"""

import argparse
import asyncio
import itertools
import json
import shutil
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.task_selection.job import ARMS, TARGET, train

RESULTS = Path(__file__).resolve().parents[1] / "results" / "task_selection.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--work", type=Path, default=Path("runs/task-selection"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.results.read_text()) if options.results.exists() else []
    for seed, arm in itertools.product(options.seeds, ARMS):
        if (arm, seed) in {(row["arm"], row["seed"]) for row in rows}:
            continue
        place = options.work.resolve() / f"{arm}-{seed}"
        shutil.rmtree(place, ignore_errors=True)
        rows.append(asyncio.run(train(arm, seed, place)))
        options.results.write_text(json.dumps(rows) + "\n")
        print(table(rows), flush=True)
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """One line per seed: tokens of both arms until the target, and their ratio."""
    by_run = {(row["arm"], row["seed"]): row for row in rows}
    seeds = [seed for arm, seed in by_run if arm == "uniform" and ("difficulty", seed) in by_run]
    lines = [
        f"| seed | tokens to {TARGET}, uniform | difficulty, with replacement | share | steps, uniform | difficulty "
        "| on open tasks, uniform | difficulty |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shares = []
    for seed in seeds:
        before, after = (by_run[arm, seed] for arm in ("uniform", "difficulty"))
        tokens = [row["tokens_to_target"] for row in (before, after)]
        share = tokens[1] / tokens[0] if None not in tokens else None
        shares += [] if share is None else [share]
        texts = ["never" if each is None else f"{each:,}" for each in tokens]
        on_open = [row["rollouts_by_kind"]["open"] / row["tokens"] for row in (before, after)]
        lines.append(
            f"| {seed} | {texts[0]} | {texts[1]} | {'–' if share is None else f'{share:.0%}'} | {before['steps']} "
            f"| {after['steps']} | {on_open[0]:.0%} | {on_open[1]:.0%} |"
        )
    if len(shares) > 1:
        lines.append(f"| mean | | | {mean(shares):.0%} | | | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
