"""``make bench-async``: the calculator job synchronous, one step off, and asynchronous at several staleness bounds.

Results are added to ``results/async.json`` run by run, so that a benchmark that was stopped goes on; the table and the
picture are made of what is there.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.asynchrony.job import MODES, TARGET, Mode, bench, key_of, make_model, read

RESULTS = Path(__file__).resolve().parents[1] / "results"
AVERAGED = ("final_accuracy", "learner_idle", "node_idle", "ess", "mean_staleness")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="modes such as sync:0 async:4")
    parser.add_argument("--work", type=Path, default=Path("runs/bench-async"))
    parser.add_argument("--again", action="store_true", help="run what has a result already, too")
    options = parser.parse_args()
    path = RESULTS / "async.json"
    results = read(path)
    for seed in options.seeds:
        kept = set() if options.again else set(map(key_of, results))
        wanted = [mode for mode in MODES if not options.only or f"{mode.name}:{mode.staleness}" in options.only]
        missing = [mode for mode in wanted if (mode.name, mode.staleness, seed) not in kept]
        if missing:
            model = options.work / f"model-{seed}"
            make_model(model, seed)
            results = asyncio.run(measure(seed, missing, model.resolve(), options.work.resolve(), results, path))
    print(summary(results))
    draw(results, RESULTS / "async.png")


async def measure(
    seed: int, modes: list[Mode], model: Path, work: Path, results: list[dict[str, Any]], path: Path
) -> list[dict[str, Any]]:
    """Every mode of a seed, one after the other; each result is written as soon as it is there."""
    async with bench(seed, model, work) as running:
        for mode in modes:
            completed = await running.run(mode)
            print(json.dumps(completed), file=sys.stderr, flush=True)
            results = [result for result in results if key_of(result) != key_of(completed)] + [completed]
            path.write_text(json.dumps(results, indent=1) + "\n")
    return results


def summary(results: list[dict[str, Any]]) -> str:
    """One line per mode, means over seeds, and how much sooner than synchronous the target was reached."""
    lines = [
        f"| mode | staleness bound | seconds to {TARGET} (per seed) | mean | times faster | final accuracy "
        "| learner idle | node idle | ESS | mean lag |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    base: float | None = None
    for mode in MODES:
        of_mode = [result for result in results if (result["mode"], result["staleness"]) == (mode.name, mode.staleness)]
        if not of_mode:
            continue
        reached = [entry["seconds_to_target"] for entry in sorted(of_mode, key=lambda entry: int(entry["seed"]))]
        average = mean(reached) if None not in reached else None
        base = average if mode.name == "sync" else base
        faster = f"{base / average:.1f}" if base and average else "–"
        each = ", ".join("never" if item is None else f"{item:.0f}" for item in reached)
        means = {name: mean(item[name] for item in of_mode) for name in AVERAGED}
        lines.append(
            f"| {mode.name} | {mode.staleness} | {each} | {average:.0f} | {faster} " if average is not None
            else f"| {mode.name} | {mode.staleness} | {each} | – | – "
        )  # fmt: skip
        lines[-1] += (
            f"| {means['final_accuracy']:.3f} | {means['learner_idle']:.0%} | {means['node_idle']:.0%} "
            f"| {means['ess']:.3f} | {means['mean_staleness']:.2f} |"
        )
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Held-out accuracy over wall-clock time, a line per mode and seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    colors = dict(zip(MODES, ("black", "tab:gray", "tab:blue", "tab:green", "tab:orange", "tab:red"), strict=True))
    for mode, color in colors.items():
        of_mode = [result for result in results if (result["mode"], result["staleness"]) == (mode.name, mode.staleness)]
        for number, item in enumerate(of_mode):
            label = (
                (f"{mode.name}, bound {mode.staleness}" if mode.name == "async" else mode.name) if not number else None
            )
            axes.plot(*zip(*item["curve"], strict=True), color=color, label=label, linewidth=1.4, alpha=0.8)
    axes.axhline(TARGET, color="black", linewidth=0.6, linestyle=":")
    axes.set(
        title="Calculator agent with a long tail of slow rollouts, two cores",
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
