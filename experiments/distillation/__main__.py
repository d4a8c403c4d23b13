"""``python -m experiments.distillation``: rewards, a teacher, recorded states and good answers beside each other.

The calculator job of the mostly wrong model, with five seeds. A row a run is added to ``results/distillation.json``, so
that an experiment that was stopped goes on.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch

from experiments.asynchrony.job import read
from experiments.distillation.job import ARMS, CHATS_OPTIM, SFT_BATCH, SHARE, Job
from experiments.distillation.plain import measure_accuracy, train_on_answers

RESULTS = Path(__file__).resolve().parents[1] / "results" / "distillation.json"
SAMPLES = 4
"""Answers to each held-out problem, where transformers answers."""
EPOCHS = 4
SHARES = (0.8, 0.9, SHARE)


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
    train_on_answers(job.model, data, plain, epochs=EPOCHS, batch=SFT_BATCH, lr=CHATS_OPTIM["lr"], seed=seed)
    return {"ours": _measure(job, ours, seed), "plain": _measure(job, plain, seed)}


def _measure(job: Job, model: Path, seed: int) -> float:
    return measure_accuracy(model, job.held_out, SAMPLES, seed)


def find_reached(row: dict[str, Any], reward: float) -> dict[str, Any] | None:
    """Return the first sampled evaluation with at least a reward; None: there is none."""
    return next((at for at in row["curve"] if at["label"] == "sampled" and at["reward"] >= reward), None)


def tables(rows: list[dict[str, Any]]) -> str:
    """Render the runs as Markdown: rollouts to shares of the teacher's accuracy, then accuracies by good answers."""
    by_run = {(row["arm"], row["seed"]): row for row in rows}
    starts = {row["seed"]: row for row in rows if row["arm"] == "teacher's accuracy"}
    arms = [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]
    lines = [
        f"| seed | of the teacher's accuracy | {' | '.join(f'rollouts, {arm}' for arm in arms)} |",
        "|---|---|" + "---|" * len(arms),
    ]
    for (seed, start), share in itertools.product(sorted(starts.items()), SHARES):
        cells = [str(seed), f"{share} × {start['accuracy']:.2f}"]
        for arm in arms:
            if row := by_run.get((arm, seed)):
                at = find_reached(row, share * start["accuracy"])
                cells.append(f"not in {row['curve'][-1]['rollouts']:,}" if at is None else f"{at['rollouts']:,}")
            else:
                cells.append("–")
        lines.append(f"| {' | '.join(cells)} |")
    imitated = {seed: by_run["best answers", seed] for seed in starts if ("best answers", seed) in by_run}
    if imitated:
        lines += ["", "| seed | model | best rollouts, `lightningbus sft` | plain torch |", "|---|---|---|---|"]
        lines += [
            f"| {seed} | {starts[seed]['before']:.2f} | {row['ours']:.2f} | {row['plain']:.2f} |"
            for seed, row in imitated.items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
