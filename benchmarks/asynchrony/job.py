"""One training run of the calculator job in one mode, through every part of the system, and what it measured."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from bus import Bus
from bus.tasks import Problem, read_problems
from inference.settings import InferenceSettings
from learner.settings import LearnerSettings
from lightningbus.evaluation import evaluate
from lightningbus.publishing import publish_all, samples_of
from lightningbus.rundir import RunDirectory
from lightningbus.settings import BusSettings
from lightningbus.supervisor import Child
from lightningbus.up import Stack, stack
from runners.settings import RunnerSettings
from store.client import connect
from store.settings import StoreSettings

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "calculator"
STEPS, GROUPS, SAMPLES = 20, 8, 8
HELD_OUT, EVERY = 32, 2
"""Problems of an evaluation, and versions between two."""
TARGET = 0.9
RUNNERS, SLOTS = 2, 16


@dataclass(frozen=True, slots=True)
class Mode:
    """How far sampling and training are apart."""

    name: str
    staleness: int
    policies: tuple[str, ...]


MODES = (
    Mode("sync", 0, ("wait", "drop")),
    Mode("one-step", 1, ("wait", "drop")),
    *(Mode("async", bound, ("wait", "drop", "ready_first")) for bound in (1, 2, 4, 8)),
)


async def run(mode: Mode, seed: int, model: Path, work: Path) -> dict[str, Any]:
    """Train from ``model`` and measure; the caller makes the model, the same for every mode of a seed."""
    directory = RunDirectory(work / f"{mode.name}-{mode.staleness}-{seed}").create(fresh=True)
    problems = directory.path / "problems"
    made = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE / "problems.py"), "--train", "512", "--heldout", str(HELD_OUT),
        "--seed", str(seed), "--out", str(problems),
    )  # fmt: skip
    assert await made.wait() == 0
    held_out = [Problem(one.id, {**one.input, "heldout": True}) for one in read_problems(problems / "heldout.jsonl")]
    async with stack(directory, BusSettings(port=0), f"{mode.name} {mode.staleness}, seed {seed}") as at:
        client = await _start(at, model, mode, seed, problems / "train.jsonl")
        watching = asyncio.create_task(_evaluate_as_it_goes(at, held_out))
        learner = _learner(mode, seed, model, directory, problems / "train.jsonl")
        await at.supervisor.start(Child("learner", "learner", learner))
        await at.unless_failed(at.supervisor.finished("learner"))
        await at.member(lambda beat: beat.role == "inference" and beat.version == STEPS, "the last version", 60)
        watching.cancel()
        final = await evaluate(
            at.bus, client, "bench", held_out, label="final", version=STEPS, samples=2, sampling={"temperature": 0.0}
        )
        found = await asyncio.to_thread(_measured, client)
    curve = found.pop("curve")
    return {
        "mode": mode.name,
        "staleness": mode.staleness,
        "seed": seed,
        "seconds_to_target": seconds_to(curve, TARGET),
        "final_accuracy": round(final.accuracy, 4),
        **found,
        "curve": curve,
    }


def seconds_to(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """When two evaluations in a row were at the target on average; None: never. ``curve``: (seconds, accuracy)."""
    for (_, before), (when, now) in pairwise(curve):
        if (before + now) / 2 >= target:
            return when
    return None


async def _start(at: Stack, model: Path, mode: Mode, seed: int, tasks: Path) -> Client:
    work = at.directory.path / "work"
    node = InferenceSettings(
        model_path=model, id="node", dtype="float32", max_model_len=128, max_num_seqs=32, threads=1, work=work
    )
    await at.supervisor.start(Child("node", "inference", node))
    store = StoreSettings(path=at.directory.store, http_port=0, id="store")
    await at.supervisor.start(Child("store", "store", store))
    for number in range(RUNNERS):
        settings = RunnerSettings(agent="agent:solve", path=HERE, concurrency=SLOTS, id=f"runner-{number}")
        await at.supervisor.start(Child(f"runner-{number}", "runner", settings))
    # A learner of no steps publishes the model and ends, so that the clock starts with everything up.
    first = _learner(mode, seed, model, at.directory, tasks, steps=0)
    await at.supervisor.start(Child("learner-first", "learner", first))
    await at.unless_failed(at.supervisor.finished("learner-first"))
    for number in range(RUNNERS):
        name = f"runner-{number}"
        await at.member(lambda beat, name=name: beat.id == name and beat.state == "running", name, 180)  # type: ignore[misc]
    await at.member(lambda beat: beat.role == "inference" and beat.version == 0, "version 0", 180)
    found = await at.member(lambda beat: beat.role == "store", "store", 60)
    return await asyncio.to_thread(connect, found.address)


async def _evaluate_as_it_goes(at: Stack, problems: Sequence[Problem]) -> None:
    """Greedy held-out problems at every second version, while training goes on; nobody waits for them."""
    asked = -EVERY
    while True:
        serving = [beat.version for beat in at.fleet.members() if beat.role == "inference" and beat.version is not None]
        if serving and serving[0] >= asked + EVERY:
            asked = serving[0]
            await _ask(at.bus, problems, asked)
        await at.fleet.changed()


async def _ask(bus: Bus, problems: Sequence[Problem], version: int) -> None:
    greedy = {"temperature": 0.0}
    tasks = samples_of(problems, 1, f"@v{version}", run="bench", agent="default", mode="eval", sampling=greedy)
    await publish_all(bus, tasks, timeout=120, on_done=lambda: None)


def _learner(
    mode: Mode, seed: int, model: Path, directory: RunDirectory, tasks: Path, steps: int = STEPS
) -> LearnerSettings:
    return LearnerSettings.model_validate(
        {
            "run": "bench",
            "model_path": model,
            "tasks": tasks,
            "samples": SAMPLES,
            "groups_per_step": GROUPS,
            "steps": steps,
            "max_staleness": mode.staleness,
            "off_policy": list(mode.policies),
            "seed": seed,
            "threads": 1,
            "checkpoints": directory.path / "checkpoints",
            "checkpoint_every": 10,
            "publish_every": 1,
            "actor": {"optim": {"lr": 5e-4, "lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}},
        }
    )


CURVE = """
SELECT toFloat64(min(t.published)) AS published, avgIf(r.reward, r.outcome = 'ok') AS accuracy
FROM rollouts AS r INNER JOIN tasks AS t ON r.run = t.run AND r.rollout = t.rollout
WHERE r.mode = 'eval' AND match(r.task, '@v[0-9]+$') GROUP BY extract(r.task, '@v([0-9]+)$') ORDER BY published
"""
BUSY = "SELECT toFloat64(start) AS start, toFloat64(end) AS end FROM model_calls ORDER BY start"
STEPS_SQL = """
SELECT toFloat64(max(ended)), sum(metrics['seconds/idle']), avg(metrics['off_policy/ess']),
       avg(metrics['staleness/mean']), max(metrics['staleness/max']), sum(metrics['rollouts/trained']), count()
FROM training_steps WHERE step > 0
"""


def _measured(client: Client) -> dict[str, Any]:
    rows = client.query(STEPS_SQL).result_rows[0]
    last, idle, ess, mean_lag, max_lag, trained, steps = rows
    (began,) = client.query("SELECT toFloat64(min(published)) FROM tasks WHERE mode = 'train'").result_rows[0]
    spent = last - began
    covered, until = 0.0, began
    for start, end in client.query(BUSY).result_rows:
        start, end = max(start, until), min(end, last)
        if end > start:
            covered, until = covered + end - start, end
    return {
        "seconds": round(spent, 1),
        "steps": steps,
        "learner_idle": round(min(1.0, idle / spent), 3),
        "node_idle": round(1 - covered / spent, 3),
        "ess": round(ess, 4),
        "mean_staleness": round(mean_lag, 2),
        "max_staleness": int(max_lag),
        "rollouts_trained": int(trained),
        "curve": [(round(when - began, 1), round(value, 4)) for when, value in client.query(CURVE).result_rows],
    }


def make_model(path: Path, seed: int) -> None:
    """The small model of the calculator example, mostly wrong."""
    if (path / "model.safetensors").exists():
        return
    import subprocess

    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, str(EXAMPLE / "model.py"), "--out", str(path), "--seed", str(seed), "--steps", "450"]
    subprocess.run(command, check=True, env=quiet, stderr=subprocess.DEVNULL)


def key_of(result: dict[str, Any]) -> tuple[str, int, int]:
    """What tells one run from another."""
    return result["mode"], result["staleness"], result["seed"]


def read(path: Path) -> list[dict[str, Any]]:
    """Results of earlier runs."""
    return list(json.loads(path.read_text())) if path.exists() else []
