"""``python -m experiments.trl --trl-python PYTHON``: the demo's pretrained model by lightningbus and by TRL, in turn.

Both train the same model from the same tasks with as many rollouts a step, the same learning rate and the same bound of
answers, on two threads. A row is added to ``results/trl.json`` run by run. The table is made of what is there.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.asynchrony.job import read
from lightningbus.common.processor import has_bfloat16
from lightningbus.run.jobs.demo_settings import PRETRAINED
from lightningbus.run.pretrained.catalog import SMOLLM2
from lightningbus.run.pretrained.folder import find_folder

RESULTS = Path(__file__).resolve().parents[1] / "results" / "trl.json"
CURVE = """
WITH (SELECT min(enqueued_at) FROM tasks WHERE mode = 'train') AS began
SELECT step, dateDiff('millisecond', began, ended_at) / 1000 AS seconds, metrics['reward/mean'] AS reward
FROM training_steps ORDER BY step
"""
"""Steps, seconds since the first task of training, mean reward of the rollouts trained on."""
TARGET = 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl-python", type=Path, help="interpreter of an environment with TRL")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=PRETRAINED.steps)
    parser.add_argument("--work", type=Path, default=Path("runs/trl"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = read(options.results)
    for seed in options.seeds:
        work = options.work.resolve() / str(seed)
        for system in ("lightningbus", "trl"):
            if any((row["system"], row["seed"]) == (system, seed) for row in rows):
                continue
            if system == "lightningbus":
                rows.append(train_ours(work, seed, options.steps))
            elif options.trl_python is not None:
                rows.append(train_trl(options.trl_python, work, seed, options.steps))
            options.results.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def train_ours(work: Path, seed: int, steps: int) -> dict[str, Any]:
    """Run the demo; raises CalledProcessError if it fails."""
    ours = [sys.executable, "-m", "lightningbus"]
    demo = ["demo", "--model", "smollm2", "--seed", str(seed), "--steps", str(steps), "--runs", str(work)]
    subprocess.run([*ours, *demo], check=True, stdout=subprocess.DEVNULL)
    query = [*ours, "query", "--run", str(work / "demo"), "--json", CURVE]
    curve = json.loads(subprocess.run(query, check=True, stdout=subprocess.PIPE).stdout)
    figures = json.loads((work / "demo" / "results.json").read_text())
    return {
        "system": "lightningbus",
        "seed": seed,
        "curve": curve,
        "heldout_before": figures["sampled_before"],
        "heldout_after": figures["sampled_after"],
        "lost": figures["rollouts_lost"],
    }


def train_trl(python: Path, work: Path, seed: int, steps: int) -> dict[str, Any]:
    """Run TRL on the tasks of our run of the same seed; raises CalledProcessError if it fails."""
    tasks, out = work / "demo" / "work", work / "trl.json"
    arguments: dict[str, Any] = {
        "model": find_folder(SMOLLM2),
        "tasks": tasks / "train.jsonl",
        "heldout": tasks / "heldout.jsonl",
        "out": out,
        "seed": seed,
        "steps": steps,
        "lr": PRETRAINED.lr,
        "min_lr_ratio": PRETRAINED.min_lr_ratio,
        "groups": PRETRAINED.groups_per_step,
        "samples": PRETRAINED.samples,
    }
    flat = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    flat += ["--bf16"] * has_bfloat16()
    subprocess.run([str(python), str(Path(__file__).with_name("grpo.py")), *flat], check=True)
    return {"system": "trl", "seed": seed, **json.loads(out.read_text())}


def table(rows: list[dict[str, Any]]) -> str:
    """Render the runs as Markdown: a line for each system, with its seeds in order."""
    lines = [
        "| system | runs | held-out reward, sampled, before | after (per seed) | steps to a reward of "
        f"{TARGET} (per seed) | seconds to it | seconds a step |",
        "|---|---|---|---|---|---|---|",
    ]
    for system in dict.fromkeys(row["system"] for row in rows):
        runs = sorted((row for row in rows if row["system"] == system), key=lambda row: row["seed"])
        reached = [next((at for at in row["curve"] if at["reward"] >= TARGET), None) for row in runs]
        steps, seconds = (
            ", ".join("never" if at is None else f"{at[name]:.0f}" for at in reached) for name in ("step", "seconds")
        )
        after = ", ".join(f"{row['heldout_after']:.2f}" for row in runs)
        a_step = mean(row["curve"][-1]["seconds"] / row["curve"][-1]["step"] for row in runs)
        before = mean(row["heldout_before"] for row in runs)
        lines.append(f"| {system} | {len(runs)} | {before:.2f} | {after} | {steps} | {seconds} | {a_step:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
