"""``python -m experiments.distillation.pretrained``: SmolLM2 learns from rewards, then from the model that came of it.

The job of ``lightningbus demo`` with its settings. The last version of the run with rewards is the teacher of the model
that both runs begin with.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightningbus as lb
from experiments.distillation.job import Target, read_curve, run_ours
from lightningbus.run.jobs.demo_settings import PRETRAINED, build_settings, choose_size
from lightningbus.run.pretrained.catalog import SMOLLM2
from lightningbus.run.pretrained.folder import find_folder
from lightningbus.run.projects.template import make_tasks, read_call_example

RESULTS = Path(__file__).resolve().parents[1] / "results" / "distillation_pretrained.json"
SHARES = (0.8, 0.9, 0.95)
"""Parts of the teacher's held-out reward; the student ends at the last."""
TAUGHT: dict[str, Any] = {
    "group_size": 1,
    "groups_per_step": 16,
    "max_steps": 24,
    "algorithm": {"adv_estimator": "reinforce_plus_plus"},  # it takes groups of one; without rewards it is idle
    "teacher": {"model": "teacher", "top_k": 8},
    "loss_weights": {"rl": 0, "kl": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12, help="steps of 64 rollouts with rewards")
    parser.add_argument("--work", type=Path, default=Path("runs/distillation-pretrained"))
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    texts = make_tasks(PRETRAINED.train, PRETRAINED.heldout, options.seed, read_call_example())
    for name, text in zip(("train.jsonl", "heldout.jsonl"), texts, strict=True):
        (work / name).write_text(text)
    curves = {"rewards": train("rewards", work, options.seed, options.steps)}
    teacher = work / "teacher-model"
    run_ours("weights", "export", "--run", work / "rewards", teacher)
    curves["teacher"] = train(
        "teacher", work, options.seed, options.steps, teacher, SHARES[-1] * curves["rewards"][-1]["reward"]
    )
    RESULTS.write_text(json.dumps({"seed": options.seed, **curves}, indent=1) + "\n")
    print(table(curves))


def train(
    name: str, work: Path, seed: int, steps: int, teacher: Path | None = None, target: float = 2.0
) -> list[dict[str, Any]]:
    """Train by rewards, or by a teacher until an evaluation is at the target; return the curve."""
    size = choose_size(find_folder(SMOLLM2), steps, seed, has_gpu=False)
    settings, learner, held_out = build_settings(replace(size, samples_heldout=2), work)
    fields, nodes = _read(learner), [_read(node) for node in settings.inference]
    if teacher is not None:
        fields |= TAUGHT | {"actor": {**fields["actor"], "ppo_epochs": 4}}
        nodes.append({**nodes[0], "model_path": teacher, "model": "teacher", "frozen": True})
    changes = {
        "name": name,
        "runs": work,
        "inference": nodes,
        "learner": {key: value for key, value in fields.items() if key not in ("run", "checkpoint_dir")},
        "eval": {**_read(held_out), "sampling": ["sampled"], "every": 1},
    }
    return read_curve(lb.train(settings=_read(settings) | changes, callbacks=[Target(target)]))


def table(curves: dict[str, list[dict[str, Any]]]) -> str:
    """Render the rollouts until shares of the teacher's held-out reward as Markdown."""
    best = curves["rewards"][-1]["reward"]
    lines = [
        f"| of the teacher's {best:.2f} | rollouts, {' | rollouts, '.join(curves)} |",
        "|---|" + "---|" * len(curves),
    ]
    for share in SHARES:
        cells = []
        for curve in curves.values():
            at = next((each["rollouts"] for each in curve if each["reward"] >= share * best), None)
            cells.append(f"not in {curve[-1]['rollouts']}" if at is None else str(at))
        lines.append(f"| {share} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _read(settings: Any) -> dict[str, Any]:
    fields: dict[str, Any] = settings.model_dump(exclude_unset=True)
    return fields


if __name__ == "__main__":
    main()
