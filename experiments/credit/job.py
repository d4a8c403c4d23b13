"""Training jobs of two examples with one credit method each, and what they measured."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from experiments.asynchrony.job import seconds_to

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
JOBS = ("math_tools", "text_to_sql")
METHODS = ("identical", "air", "gigpo")
"""`gigpo` compares calls of the same state, which its authors call anchor states."""
STEPS = 16
"""Of each run, at most."""
GROUPS_PER_STEP = 8
EVERY = 2
"""Weight versions between two evaluations; a version is a step."""
TARGET_SHARE = 0.9

Curve = list[tuple[int, float]]
"""Version and held-out reward of each evaluation, answers being sampled: greedy ones are right after a few steps."""


def job_fields(job: str, method: str, seed: int, work: Path, max_steps: int = STEPS) -> dict[str, Any]:
    """The run file: the example's `small.yaml`, smaller, with a credit method and a seed, evaluated as it goes.

    Its paths are those of the example's folder.
    """
    example = EXAMPLES / job
    fields: dict[str, Any] = yaml.safe_load((example / "small.yaml").read_text())
    fields |= {"name": f"{job}-{method}-{seed}", "runs": str(work)}
    fields["learner"] |= {
        "credit": {"method": method},
        "seed": seed,
        "max_steps": max_steps,
        "groups_per_step": GROUPS_PER_STEP,
    }
    fields["eval"] |= {"every": EVERY, "samples": 1, "sampling": ["sampled"]}
    if job == "text_to_sql":
        for runner in fields["runners"]:
            runner |= {
                "entrypoint": "sql_agent:solve",
                "working_dir": str(HERE),
                "python_executable": str(example / ".venv" / "bin" / "python"),
            }
    return fields


def prepare(job: str) -> None:
    """The example's environment, problems and warm-started model, unless they are there."""
    subprocess.run(["make", "-C", str(EXAMPLES / job), "env", "work/model/model.safetensors"], check=True)


def train(job: str, method: str, seed: int, work: Path, max_steps: int = STEPS) -> dict[str, Any]:
    """Run a job, or go on where it was stopped; raises CalledProcessError if it fails."""
    fields = job_fields(job, method, seed, work, max_steps)
    work.mkdir(parents=True, exist_ok=True)
    file = work / f"{fields['name']}.yaml"
    text = yaml.safe_dump(fields)
    is_same = file.exists() and file.read_text() == text
    file.write_text(text)
    results = work / fields["name"] / "results.json"
    resume = ["--resume"] if is_same and results.exists() and not json.loads(results.read_text())["is_finished"] else []
    command = [sys.executable, "-m", "lightningbus", "train", "-c", str(file), *resume]
    subprocess.run(command, check=True, cwd=EXAMPLES / job, stdout=subprocess.DEVNULL)
    return row_of(job, method, seed, json.loads(results.read_text()))


def row_of(job: str, method: str, seed: int, figures: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run: its curve, and the figures of `results.json` that compare methods. Pure."""
    sampled = [each for each in figures["evaluations"] if each["label"] == "sampled"]
    curve = sorted((each["version"], round(each["mean_reward"], 4)) for each in sampled)
    return {
        "job": job,
        "method": method,
        "seed": seed,
        **{name: figures[name] for name in ("steps", "rollouts", "share_trained", "mean_staleness", "seconds")},
        "rollouts_lost": figures["rollouts_lost"],
        "curve": curve,
    }


def key_of(row: dict[str, Any]) -> tuple[str, str, int]:
    """What tells one run from another."""
    return row["job"], row["method"], row["seed"]


def target_of(rows: Sequence[dict[str, Any]]) -> float | None:
    """The target of a job: nine tenths of the way from the first to the best mean reward of `identical`; None without
    such a run. Pure."""
    curves = [dict(map(tuple, row["curve"])) for row in rows if row["method"] == "identical"]
    if not curves:
        return None
    shared = sorted(set.intersection(*map(set, curves)))
    means = [mean(curve[version] for curve in curves) for version in shared]
    return round(means[0] + TARGET_SHARE * (max(means) - means[0]), 3)


def steps_to(curve: Curve, target: float) -> int | None:
    """The step at which two evaluations in a row were at the target on average; None: never. Pure."""
    reached = seconds_to(curve, target)
    return None if reached is None else int(reached)
