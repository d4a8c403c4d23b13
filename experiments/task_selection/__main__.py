"""``python -m experiments.task_selection``: tokens to the same accuracy, by the choice of tasks, with five seeds.

Each arm has its best learning rate of those that were run. A row a run is added to ``results/task_selection.json``, so
that an experiment that was stopped goes on.
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
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[2e-3, 2.8e-3, 4e-3])
    parser.add_argument("--work", type=Path, default=Path("runs/task-selection"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.results.read_text()) if options.results.exists() else []
    for rate, seed, arm in itertools.product(options.learning_rates, options.seeds, options.arms):
        if (arm, seed, rate) in {(row["arm"], row["seed"], row["learning_rate"]) for row in rows}:
            continue
        place = options.work.resolve() / f"{arm}-{seed}-{rate:g}"
        shutil.rmtree(place, ignore_errors=True)
        rows.append(asyncio.run(train(arm, seed, rate, place)))
        options.results.write_text(json.dumps(rows) + "\n")
        print(rate_table(rows), seed_table(rows), sep="\n\n", flush=True)
    print(rate_table(rows), seed_table(rows), sep="\n\n")


def rate_table(rows: list[dict[str, Any]]) -> str:
    """One line per learning rate: for each arm the runs that came to the target, and their mean tokens."""
    cells = group_by_rate(rows)
    lines = [
        f"| learning rate | uniform: came to {TARGET} | mean tokens | difficulty: came to {TARGET} | mean tokens |",
        "|---|---|---|---|---|",
    ]
    for rate in sorted({rate for _, rate in cells}):
        texts = []
        for arm in ("uniform", "difficulty"):
            runs = cells.get((arm, rate), [])
            tokens = [row["tokens_to_target"] for row in runs if row["tokens_to_target"] is not None]
            texts += [f"{len(tokens)} of {len(runs)}" if runs else "–", f"{mean(tokens):,.0f}" if tokens else "–"]
        lines.append(f"| {rate:g} | {' | '.join(texts)} |")
    return "\n".join(lines)


def seed_table(rows: list[dict[str, Any]]) -> str:
    """One line per seed, with the best learning rate of each arm: tokens until the target, and their ratio."""
    best = {arm: find_best(rows, arm) for arm in ("uniform", "difficulty")}
    by_run = {(row["arm"], row["seed"]): row for row in rows if row["learning_rate"] == best[row["arm"]]}
    seeds = sorted(seed for arm, seed in by_run if arm == "uniform" and ("difficulty", seed) in by_run)
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


def find_best(rows: list[dict[str, Any]], arm: str) -> float | None:
    """Find the learning rate with which the most runs came to the target; of several, that with the fewest tokens."""
    costs = {}
    for (each, rate), runs in group_by_rate(rows).items():
        if each == arm:
            num_missed = sum(row["tokens_to_target"] is None for row in runs)
            costs[rate] = (num_missed / len(runs), mean(row["tokens_to_target"] or row["tokens"] for row in runs))
    return min(costs, key=lambda rate: costs[rate], default=None)


def group_by_rate(rows: list[dict[str, Any]]) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """Group the runs by arm and learning rate."""
    cells: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["arm"], row["learning_rate"]), []).append(row)
    return cells


if __name__ == "__main__":
    main()
