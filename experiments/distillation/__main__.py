"""``python -m experiments.distillation``: rewards, a teacher, recorded states and good answers beside each other.

The calculator job of the mostly wrong model, with five seeds. A row a run is added to ``results/distillation.json``, so
that an experiment that was stopped goes on.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from experiments.asynchrony.job import read
from experiments.distillation.job import ARMS, SFT_BATCH, SFT_LR, SHARE, Job
from experiments.distillation.plain import measure_accuracy, train_on_answers

RESULTS = Path(__file__).resolve().parents[1] / "results" / "distillation.json"
SAMPLES = 4
"""Answers to each held-out problem, where transformers answers."""
EPOCHS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--work", type=Path, default=Path("runs/distillation"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = read(options.results)
    for seed in options.seeds:
        job = Job(seed, options.work.resolve() / str(seed))
        for name in ("teacher's accuracy", *ARMS, "best answers"):
            if any((row["arm"], row["seed"]) == (name, seed) for row in rows):
                continue
            if name == "teacher's accuracy":
                job.prepare()
                row = {"before": _measure(job, job.model, seed), "accuracy": _measure(job, job.teacher, seed)}
            elif name in ARMS:
                (teacher,) = (row for row in rows if (row["arm"], row["seed"]) == ("teacher's accuracy", seed))
                row = job.train(name, SHARE * teacher["accuracy"])
            else:
                row = imitate_best(job, seed)
            rows.append({**row, "arm": name, "seed": seed})
            options.results.write_text(json.dumps(rows, indent=1) + "\n")
            print(tables(rows), flush=True)
    print(tables(rows))


def imitate_best(job: Job, seed: int) -> dict[str, Any]:
    """Train on the best rollouts of the run with rewards by ours and by plain torch; return both accuracies."""
    data, (ours, plain) = job.write_best(), (job.model.with_name(name) for name in ("best-ours", "best-plain"))
    job.imitate("best", [data, "--model-path", job.model], ours, EPOCHS)
    train_on_answers(job.model, data, plain, epochs=EPOCHS, batch=SFT_BATCH, lr=SFT_LR, seed=seed)
    return {"ours": _measure(job, ours, seed), "plain": _measure(job, plain, seed)}


def _measure(job: Job, model: Path, seed: int) -> float:
    return measure_accuracy(model, job.held_out, SAMPLES, seed)


def find_reached(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first evaluation at the target; None: none was."""
    at_target = (at for at in row["curve"] if at["label"] == "sampled" and at["reward"] >= row["target"])
    return next(at_target, None)


def tables(rows: list[dict[str, Any]]) -> str:
    """Render the runs as Markdown: rollouts to the target of each way, then the accuracies by good answers."""
    by_run = {(row["arm"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        "| seed | model | teacher | rollouts to the target: rewards | teacher | share | recorded states | share "
        "| agent's rollouts there | seconds to the target: rewards | answers, then rewards |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    shares: dict[str, list[float]] = {"teacher": [], "states": []}
    for seed in seeds:
        if any((arm, seed) not in by_run for arm in ("teacher's accuracy", *ARMS)):
            continue
        start = by_run["teacher's accuracy", seed]
        reached = {arm: find_reached(by_run[arm, seed]) for arm in ARMS}
        rewards = reached["rewards"]
        most = by_run["rewards", seed]["curve"][-1]["rollouts"]
        cells = [f"{seed}", f"{start['before']:.2f}", f"{start['accuracy']:.2f}"]
        cells.append(f"not in {most:,}" if rewards is None else f"{rewards['rollouts']:,}")
        for arm, of_arm in shares.items():
            at = reached[arm]
            share = None if at is None else at["rollouts"] / (most if rewards is None else rewards["rollouts"])
            of_arm += [] if share is None else [share]
            cells += ["never" if at is None else f"{at['rollouts']:,}", "–" if share is None else f"{share:.0%}"]
        cells.append(str(by_run["states", seed]["curve"][-1]["agent_rollouts"]))
        for arm in ("rewards", "answers, then rewards"):
            at, row = reached[arm], by_run[arm, seed]
            cells.append("never" if at is None else f"{at['seconds'] + row['seconds_before']:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    if all(len(each) > 1 for each in shares.values()):
        means = {arm: f"{mean(each):.0%}" for arm, each in shares.items()}
        lines.append(f"| mean | | | | | {means['teacher']} | | {means['states']} | | | |")
    lines += ["", "| seed | model | best rollouts, `lightningbus sft` | plain torch |", "|---|---|---|---|"]
    for seed in seeds:
        if ("best answers", seed) in by_run:
            row, before = by_run["best answers", seed], by_run["teacher's accuracy", seed]["before"]
            lines.append(f"| {seed} | {before:.2f} | {row['ours']:.2f} | {row['plain']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
