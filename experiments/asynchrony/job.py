"""Training runs of the calculator job, a mode each, through every part of the system, and what they measured."""

import asyncio
import json
import math
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from clickhouse_connect.driver.client import Client

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.checkpointing.checkpoint import Checkpoints
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation.evaluation import evaluate
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.run.evaluation.request import RolloutRequest, expand_samples
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import WeightManifest
from lightningbus.store.clickhouse.client import connect, query_row
from lightningbus.store.settings import StoreSettings
from lightningbus.tasks.task_loading import TaskInput, load_tasks

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "calculator"
STEPS, GROUPS, SAMPLES = 20, 8, 8
HELD_OUT, EVERY = 32, 2
"""Problems of an evaluation, and versions between two."""
TARGET = 0.9
RUNNERS, SLOTS = 2, 16
GREEDY = {"temperature": 0.0}
EVALUATED: dict[str, Any] = {"agent": "default", "sampling_params": GREEDY}


JOBS = ("long_tail", "slow_is_hard")
"""One rollout in twenty is slow, at random; or one task in five is slow, and has two questions to answer."""
HARD_EVERY = 5


@dataclass(frozen=True, slots=True)
class Mode:
    """How far sampling and training are apart."""

    name: str
    bound: int
    order: str


MODES = (
    Mode("sync", 0, "oldest_first"),
    Mode("one-step", 1, "dispatch"),
    *(Mode("async", bound, "oldest_first") for bound in (1, 2, 4, 8)),
)


class Bench:
    """A job with one seed, up and running; modes are trained in it one after the other, from the same weights."""

    def __init__(self, at: LocalStack, job: str, seed: int, model: Path) -> None:
        self._at, self._job, self._seed, self._model = at, job, seed, model
        self._problems = at.directory.path / "problems"
        self._start = at.directory.path / "start"

    async def begin(self) -> None:
        """Problems, every process but the learner, and the checkpoint that every mode begins with."""
        at, path = self._at, self._at.directory.path
        make = [EXAMPLE / "problems.py", "--train", 640, "--heldout", 2 * HELD_OUT, "--seed", self._seed]
        process = await asyncio.create_subprocess_exec(sys.executable, *map(str, make), "--out", str(self._problems))
        assert await process.wait() == 0
        train = arrange_tasks(self._job, load_tasks(self._problems / "train.jsonl"))
        write_tasks(self._problems / "train.jsonl", train)
        held_out = arrange_tasks(self._job, load_tasks(self._problems / "heldout.jsonl"))
        self._held_out = [replace(task, input={**task.input, "heldout": True}) for task in held_out]
        node = InferenceSettings(
            model_path=self._model, id="node", dtype="float32", max_model_len=128, max_num_seqs=32, cpu_threads=1,
            work_dir=path / "node",
        )  # fmt: skip
        await at.supervisor.start(ChildSpec("node", "inference", node))
        await at.supervisor.start(
            ChildSpec("store", "store", StoreSettings(data_dir=at.directory.store, http_port=0, id="store"))
        )
        for number in range(RUNNERS):
            settings = RunnerSettings(
                entrypoint="agent:solve", working_dir=HERE, concurrency=SLOTS, id=f"runner-{number}"
            )
            await at.supervisor.start(ChildSpec(f"runner-{number}", "runner", settings))
        await self._learn("start", MODES[0], self._start, steps=0)
        for number in range(RUNNERS):
            name = f"runner-{number}"
            await at.wait_for_member(lambda beat, name=name: beat.id == name and beat.state == "running", name, 180)  # type: ignore[misc]
        await at.wait_for_member(lambda beat: beat.role == "inference" and beat.state == "ready", "ready node", 180)
        member = await at.wait_for_member(lambda beat: beat.role == "store", "store", 60)
        self._sql = await asyncio.to_thread(connect, member.address)

    async def run(self, mode: Mode) -> dict[str, Any]:
        """Train in one mode, and measure."""
        name = f"{mode.name}-{mode.bound}"
        checkpoints = self._at.directory.path / name
        _copy_checkpoint(self._start, checkpoints, name)
        watching = asyncio.create_task(self._evaluate_as_it_goes(name))
        await self._learn(name, mode, checkpoints, STEPS)
        newest = await self._at.bus.get_last(subjects.WEIGHTS, subjects.weights("policy"), WeightManifest)
        assert newest is not None
        last = newest[0].version
        await self._at.wait_for_member(
            lambda beat: beat.role == "inference" and beat.version == last, "the last version", 60
        )
        watching.cancel()
        request = RolloutRequest(
            run=name, evaluation="final", weight_versions={"policy": last}, samples=2, sampling=GREEDY
        )
        final = await evaluate(self._at.bus, self._sql, request, self._held_out)
        while (await asyncio.to_thread(query_row, self._sql, "SELECT count() FROM check_unfinished_rollouts"))[0]:
            await self._at.fleet.wait_for_change()
        measured = await asyncio.to_thread(_measured, self._sql, name)
        curve = measured.pop("curve")
        return {
            "mode": mode.name,
            "bound": mode.bound,
            "job": self._job,
            "seed": self._seed,
            "seconds_to_target": seconds_to(curve, TARGET),
            "final_accuracy": round(final.mean_reward, 4),
            **measured,
            "curve": curve,
        }

    async def _learn(self, run: str, mode: Mode, checkpoints: Path, steps: int) -> None:
        settings = _learner(run, mode, self._seed, self._model, self._problems / "train.jsonl", checkpoints, steps)
        await self._at.supervisor.start(ChildSpec(f"learner-{run}", "learner", settings))
        await self._at.or_child_failure(self._at.supervisor.wait_finished(f"learner-{run}"))

    async def _evaluate_as_it_goes(self, run: str) -> None:
        """Greedy held-out problems at every second version, while training goes on; nobody waits for them."""
        evaluated: int | None = None
        while True:
            learns = any(beat.role == "learner" and beat.run_id == run for beat in self._at.fleet.members())
            serving = [beat.version for beat in self._at.fleet.members() if beat.role == "inference"]
            if learns and serving and serving[0] is not None and (evaluated is None or serving[0] >= evaluated + EVERY):
                evaluated = serving[0]
                tasks = expand_samples(self._held_out, 1, f"@{run}-v{evaluated}", run_id=run, mode="eval", **EVALUATED)
                await publish_all(self._at.bus, tasks, timeout=120, on_done=lambda: None)
            await self._at.fleet.wait_for_change()


@asynccontextmanager
async def bench(job: str, seed: int, model: Path, work: Path) -> AsyncIterator[Bench]:
    """A job with one seed while the block runs; the model is the same for all its modes."""
    with RunDirectory(work / f"{job}-{seed}").lock(fresh=True) as directory:
        async with start_stack(directory, BusSettings(port=0), f"bench-async, {job}, seed {seed}") as at:
            running = Bench(at, job, seed, model)
            await running.begin()
            yield running


def _copy_checkpoint(source: Path, target: Path, run: str) -> None:
    """Copy the newest checkpoint, as one of another run."""
    newest = Checkpoints(source).latest()
    assert newest is not None
    path, state = newest
    shutil.copytree(source, target, symlinks=True)
    checkpoints = Checkpoints(target)
    temporary = checkpoints.create_temp(state.step)
    shutil.copytree(path, temporary, dirs_exist_ok=True)
    checkpoints.commit(temporary, msgspec.structs.replace(state, run_id=run))


def seconds_to(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """When two evaluations in a row were at the target on average; None: never. ``curve``: (seconds, accuracy)."""
    for (_, before), (when, now) in pairwise(curve):
        if (before + now) / 2 >= target:
            return when
    return None


def _learner(
    run: str, mode: Mode, seed: int, model: Path, tasks: Path, checkpoints: Path, steps: int
) -> LearnerSettings:
    return LearnerSettings.model_validate(
        {
            "run": run,
            "model_path": model,
            "tasks": tasks,
            "group_size": SAMPLES,
            "groups_per_step": GROUPS,
            "max_steps": steps,
            "max_staleness": mode.bound,
            "staleness": {"order": mode.order},
            "seed": seed,
            "cpu_threads": 1,
            "checkpoint_dir": checkpoints,
            "checkpoint_interval": 10,
            "actor": {"optim": {"lr": 5e-4, "lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}},
        }
    )


# When the last of its problems was answered.
CURVE = """
SELECT toFloat64(max(ended_at)) AS at, avgIf(reward, outcome = 'ok') AS accuracy FROM rollouts
WHERE run_id = {run_id:String} AND mode = 'eval' AND match(task_id, '@' || {run_id:String} || '-v[0-9]+$')
GROUP BY extract(task_id, '-v([0-9]+)$') ORDER BY at
"""
BUSY = """
SELECT toFloat64(started_at) AS started_at, toFloat64(ended_at) AS ended_at FROM model_calls
WHERE run_id = {run_id:String} ORDER BY started_at
"""
BEGAN = "SELECT toFloat64(min(enqueued_at)) FROM tasks WHERE mode = 'train' AND run_id = {run_id:String}"
STEPS_SQL = """
SELECT toFloat64(max(ended_at)), sum(metrics['seconds/idle']), avg(metrics['off_policy/ess']),
       avg(metrics['staleness/mean']), max(metrics['staleness/max']), sum(metrics['rollouts/trained']), count()
FROM training_steps WHERE run_id = {run_id:String}
"""


# Slow: of the kind that is, or in a long tail a rollout that took as long as the tool makes it wait.
SHARES = """
SELECT
    countIf(is_trained) / count() AS share_trained,
    countIf(is_trained AND is_slow) / countIf(is_slow) AS share_trained_slow,
    countIf(is_slow) / count() AS slow_share_dispatched,
    countIf(is_slow AND is_trained) / countIf(is_trained) AS slow_share_trained
FROM
(
    SELECT
        (t.run_id, t.rollout_id) IN (SELECT run_id, rollout_id FROM training_rollouts WHERE trained) AS is_trained,
        date_diff('millisecond', r.started_at, r.ended_at) >= 3000 AS took_long,
        if(mapContains(t.labels, 'kind'), t.labels['kind'] = 'slow', took_long) AS is_slow
    FROM tasks AS t LEFT JOIN rollouts AS r ON t.run_id = r.run_id AND t.rollout_id = r.rollout_id
    WHERE t.mode = 'train' AND t.run_id = {run_id:String}
)
"""
KS_P_VALUE = "SELECT any(ks_p_value) FROM fairness WHERE run_id = {run_id:String}"
ACCURACY = """
SELECT avgIf(reward, labels['kind'] != 'slow'), avgIf(reward, labels['kind'] = 'slow')
FROM rollouts AS r INNER JOIN tasks AS t ON r.run_id = t.run_id AND r.rollout_id = t.rollout_id
WHERE r.run_id = {run_id:String} AND r.task_id LIKE '%-final-v%'
"""


def arrange_tasks(job: str, tasks: Sequence[TaskInput]) -> list[TaskInput]:
    """The tasks of a job: in `slow_is_hard` every fifth takes a second question from those left over."""
    if job == "long_tail":
        kept = tasks[: len(tasks) * HARD_EVERY // (HARD_EVERY + 1)]
        return [replace(task, input={**task.input, "long_tail": True}) for task in kept]
    single = len(tasks) * HARD_EVERY // (HARD_EVERY + 1)
    more = iter(tasks[single:])
    return [
        replace(task, input={**task.input, "more": [next(more).input]}, labels={"kind": "slow"})
        if place % HARD_EVERY == 0
        else replace(task, input={**task.input, "long_tail": False}, labels={"kind": "quick"})
        for place, task in enumerate(tasks[:single])
    ]


def write_tasks(path: Path, tasks: Sequence[TaskInput]) -> None:
    """Write a task file."""
    lines = [json.dumps({"id": task.id, "input": task.input, "labels": task.labels}) for task in tasks]
    path.write_text("\n".join(lines) + "\n")


def _measured(client: Client, run: str) -> dict[str, Any]:
    which = {"run_id": run}
    last, idle, ess, mean_lag, max_lag, trained, steps = client.query(STEPS_SQL, parameters=which).result_rows[0]
    (began,) = client.query(BEGAN, parameters=which).result_rows[0]
    seen = client.query(CURVE, parameters=which).result_rows
    spent = last - began
    covered, until = 0.0, began
    for start, end in client.query(BUSY, parameters=which).result_rows:
        start, end = max(start, until), min(end, last)
        if end > start:
            covered, until = covered + end - start, end
    shares = client.query(SHARES, parameters=which).first_item or {}
    (ks_p_value,) = client.query(KS_P_VALUE, parameters=which).result_rows[0]
    quick, slow = client.query(ACCURACY, parameters=which).result_rows[0]
    return {
        **{name: round(value, 4) for name, value in shares.items()},
        "ks_p_value": round(ks_p_value, 4),
        "final_accuracy_quick": round(quick, 4),
        "final_accuracy_slow": None if slow is None or math.isnan(slow) else round(slow, 4),
        "seconds": round(spent, 1),
        "steps": steps,
        "learner_idle": round(min(1.0, idle / spent), 3),
        "node_idle": round(1 - covered / spent, 3),
        "ess": round(ess, 4),
        "mean_staleness": round(mean_lag, 2),
        "max_staleness": int(max_lag),
        "rollouts_trained": int(trained),
        # What was served before the first task may still be the mode's before it.
        "curve": [(round(when - began, 1), round(value, 4)) for when, value in seen if when >= began],
    }


def make_model(path: Path, seed: int) -> None:
    """The small model of the calculator example, mostly wrong."""
    if (path / "model.safetensors").exists():
        return
    import subprocess

    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, str(EXAMPLE / "model.py"), "--out", str(path), "--seed", str(seed)]
    subprocess.run(command, check=True, env=quiet, stderr=subprocess.DEVNULL)


def key_of(result: dict[str, Any]) -> tuple[str, str, int, int]:
    """What tells one run from another."""
    return result["job"], result["mode"], result["bound"], result["seed"]


def read(path: Path) -> list[dict[str, Any]]:
    """Results of earlier runs."""
    return list(json.loads(path.read_text())) if path.exists() else []
