"""``make bench-async``: the calculator job synchronous, one step off, and asynchronous at several staleness bounds.

Results are added to ``results/async.json`` run by run, so that a benchmark that was stopped goes on. The tables and the
pictures are made of what is there.
"""

import argparse
import asyncio
import itertools
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.asynchrony.job import JOBS, MODES, TARGET, Mode, bench, key_of, make_model, read

RESULTS = Path(__file__).resolve().parents[1] / "results"
AVERAGED = (
    "share_trained",
    "share_trained_slow",
    "learner_idle",
    "node_idle",
    "ess",
    "mean_staleness",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--only", nargs="+", help="modes such as sync:0 async:4")
    parser.add_argument("--work", type=Path, default=Path("runs/bench-async"))
    parser.add_argument("--results", type=Path, default=RESULTS / "async.json")
    parser.add_argument("--again", action="store_true", help="run what has a result already, too")
    options = parser.parse_args()
    results = read(options.results)
    for seed, job in itertools.product(options.seeds, options.jobs):
        kept = set() if options.again else set(map(key_of, results))
        wanted = [mode for mode in MODES if not options.only or f"{mode.name}:{mode.bound}" in options.only]
        missing = [mode for mode in wanted if (job, mode.name, mode.bound, seed) not in kept]
        if missing:
            model = options.work / f"model-{seed}"
            make_model(model, seed)
            results = asyncio.run(
                measure(job, seed, missing, model.resolve(), options.work.resolve(), results, options.results)
            )
    print(tables(results))
    for job, of_job in by_job(results).items():
        draw(of_job, job, options.results.with_name(f"{options.results.stem}-{job}.png"))


async def measure(
    job: str, seed: int, modes: list[Mode], model: Path, work: Path, results: list[dict[str, Any]], path: Path
) -> list[dict[str, Any]]:
    """Every mode of a job and seed, one after the other; each result is written as soon as it is there."""
    async with bench(job, seed, model, work) as running:
        for mode in modes:
            completed = await running.run(mode)
            print(json.dumps(completed), file=sys.stderr, flush=True)
            results = [result for result in results if key_of(result) != key_of(completed)] + [completed]
            path.write_text(json.dumps(results, indent=1) + "\n")
    return results


def by_job(results: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Results of each job that has some."""
    jobs = {job: [result for result in results if result["job"] == job] for job in JOBS}
    return {job: of_job for job, of_job in jobs.items() if of_job}


def tables(results: list[dict[str, Any]]) -> str:
    """A table for each job."""
    return "\n\n".join(f"Job `{job}`:\n\n{summary(of_job)}" for job, of_job in by_job(results).items())


def summary(results: list[dict[str, Any]]) -> str:
    """One line per mode, means over seeds, and how much sooner than synchronous the target was reached.

    Seconds and accuracies are averaged over the seeds that can reach the target.
    """
    lines = [
        f"| mode | bound | seconds to {TARGET} (per seed) | mean | times faster | share trained | of the slow "
        "| final accuracy | of the slow | learner idle | node idle | ESS | mean lag |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    base: float | None = None
    hopeless = find_hopeless_seeds(results)
    for mode in MODES:
        of_mode = [result for result in results if (result["mode"], result["bound"]) == (mode.name, mode.bound)]
        if not of_mode:
            continue
        by_seed = {int(result["seed"]): result["seconds_to_target"] for result in of_mode}
        reached = [value for seed, value in by_seed.items() if seed not in hopeless]
        average = mean(reached) if reached and None not in reached else None
        base = average if mode.name == "sync" else base
        seconds = ", ".join("never" if value is None else f"{value:.0f}" for _, value in sorted(by_seed.items()))
        faster = f"{base / average:.1f}" if base and average else "–"
        means = {name: mean(result[name] for result in of_mode) for name in AVERAGED}
        able = [result for result in of_mode if int(result["seed"]) not in hopeless] or of_mode
        accuracy = mean(result["final_accuracy"] for result in able)
        slow = [result["final_accuracy_slow"] for result in able if result["final_accuracy_slow"] is not None]
        lines.append(
            f"| {mode.name} | {mode.bound} | {seconds} | {'–' if average is None else f'{average:.0f}'} | {faster} "
            f"| {means['share_trained']:.1%} | {means['share_trained_slow']:.1%} "
            f"| {accuracy:.3f} | {f'{mean(slow):.3f}' if slow else '–'} | {means['learner_idle']:.0%} "
            f"| {means['node_idle']:.0%} | {means['ess']:.3f} | {means['mean_staleness']:.2f} |"
        )
    return "\n".join(lines)


def find_hopeless_seeds(results: list[dict[str, Any]]) -> set[int]:
    """Seeds whose model reaches the target in no mode: they tell nothing about how soon a mode does."""
    seeds = {int(result["seed"]) for result in results}
    return seeds - {int(result["seed"]) for result in results if result["seconds_to_target"] is not None}


def draw(results: list[dict[str, Any]], job: str, path: Path) -> None:
    """Held-out accuracy over wall-clock time, a line per mode and seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    colors = dict(zip(MODES, ("black", "tab:gray", "tab:blue", "tab:green", "tab:orange", "tab:red"), strict=True))
    for mode, color in colors.items():
        of_mode = [result for result in results if (result["mode"], result["bound"]) == (mode.name, mode.bound)]
        for number, result in enumerate(of_mode):
            label = (f"{mode.name}, bound {mode.bound}" if mode.name == "async" else mode.name) if not number else None
            axes.plot(*zip(*result["curve"], strict=True), color=color, label=label, linewidth=1.4, alpha=0.8)
    axes.axhline(TARGET, color="black", linewidth=0.6, linestyle=":")
    axes.set(
        title=f"Calculator agent, job {job}, two cores",
        xlabel="seconds since the first task",
        ylabel="held-out accuracy, greedy",
        ylim=(-0.04, 1.04),
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
