"""``make bench-policies``: a workflow trained as two policies, as one, and in part; and two players against each other.

Results are added to ``results/policies.json`` run by run, so that a benchmark that was stopped goes on. The tables are
made of what is there.
"""

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.policies.job import JOBS, arrange, find_evaluation, key_of, make_problems_and_model, run

RESULTS = Path(__file__).resolve().parents[1] / "results" / "policies.json"
LAST_STEPS = 5
"""Over so many steps the players' rewards at the end of training are averaged."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=[*JOBS])
    parser.add_argument("--arms", nargs="+", help="as 'two policies'; default: all")
    parser.add_argument("--work", type=Path, default=Path("runs/bench-policies"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="run what has a result already, too")
    options = parser.parse_args()
    results = read(options.results)
    for seed, name in itertools.product(options.seeds, options.jobs):
        job, work = JOBS[name], (options.work / f"{name}-{seed}").resolve()
        for arm in [arm for arm in job.arms if not options.arms or arm in options.arms]:
            if (name, arm, seed) in set(map(key_of, results)) and not options.again:
                continue
            make_problems_and_model(job, seed, work)
            figures = asyncio.run(run(*arrange(job, arm, seed, work, options.work.resolve())))
            completed = {"job": name, "arm": arm, "seed": seed, **figures}
            print(json.dumps(completed), file=sys.stderr, flush=True)
            results = [each for each in read(options.results) if key_of(each) != key_of(completed)] + [completed]
            options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results))


def read(path: Path) -> list[dict[str, Any]]:
    """Results of earlier runs."""
    return list(json.loads(path.read_text())) if path.exists() else []


def tables(results: Sequence[dict[str, Any]]) -> str:
    """A table for each job that has results."""
    formats = {"text_to_sql": compare_arms, "kuhn_poker": compare_players}
    kept = {name: [each for each in results if each["job"] == name] for name in formats}
    return (
        "\n\n".join(f"Job `{name}`:\n\n{formats[name](rows)}" for name, rows in kept.items() if rows)
        or "No run has ended yet."
    )


def compare_arms(results: Sequence[dict[str, Any]]) -> str:
    """Held-out mean reward of each arm, and the share of its verdicts that were right: means over seeds."""
    lines = [
        "| arm | seeds | greedy before | after | sampled before | after | per seed | verdicts right before | after "
        "| seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in JOBS["text_to_sql"].arms:
        of_arm = sorted((each for each in results if each["arm"] == arm), key=lambda each: each["seed"])
        if not of_arm:
            continue
        cells = [arm, str(len(of_arm))]
        for sampling, after in itertools.product(("greedy", "sampled"), (False, True)):
            cells.append(f"{mean(find_evaluation(each, sampling, after=after)['reward'] for each in of_arm):.2f}")
        sampled = [find_evaluation(each, "sampled", after=True)["reward"] for each in of_arm]
        cells.append(", ".join(f"{value:.2f}" for value in sampled))
        for after in (False, True):
            cells.append(f"{mean(find_evaluation(each, 'sampled', after=after)['verdicts'] for each in of_arm):.2f}")
        cells.append(f"{mean(each['seconds'] for each in of_arm):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compare_players(results: Sequence[dict[str, Any]]) -> str:
    """Chips a hand that each player wins from the beginner, and from the other at the end: a line per seed."""
    lines = [
        "| seed | Alice against the beginner, before | after | Bob against the beginner, before | after "
        f"| Alice against Bob, first {LAST_STEPS} steps | last {LAST_STEPS} | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in sorted(results, key=lambda each: each["seed"]):
        cells = [str(result["seed"])]
        for player, after in itertools.product(("alice", "bob"), (False, True)):
            evaluation = find_evaluation(result, "sampled", after=after, player=player)
            cells.append(f"{evaluation['reward']:+.2f} ± {evaluation['standard_error']:.2f}")
        chips = [step["rewards"]["alice"] for step in result["training"]]
        cells += [f"{mean(part):+.2f}" for part in (chips[:LAST_STEPS], chips[-LAST_STEPS:])]
        lines.append(f"| {' | '.join([*cells, format(result['seconds'], '.0f')])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
