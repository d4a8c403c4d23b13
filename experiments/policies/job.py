"""Training jobs of several policies, an arm and a seed each, through every part of the system, and what they measured.

Each is a run file of an example with a few settings changed, on problems and a model made from the seed.
"""

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from clickhouse_connect.driver.client import Client

from lightningbus.run.jobs.train_job import train
from lightningbus.run.preflight.job_checks import TrainJob, parse_job
from lightningbus.run.processes.stack import start_stack
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.store.clickhouse.client import connect

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL_MODEL = EXAMPLES / "small_model" / "model.py"
Fields = dict[str, Any]


def keep_all(fields: Fields) -> None:
    """The run file as it is."""


def share_one_policy(fields: Fields) -> None:
    """One model answers and is trained in all roles, by the reward of the rollout."""
    fields["learners"], fields["inference"], fields["role_models"] = fields["learners"][:1], fields["inference"][:1], {}


def freeze_checker(fields: Fields) -> None:
    """The checker stays as it begins; only the model that writes is trained."""
    fields["learners"], fields["inference"][1]["frozen"] = fields["learners"][:1], True


@dataclass(frozen=True, slots=True)
class Job:
    """A run file, its variants by name, and the commands that make its problems and its model."""

    example: str
    file: str
    place: str
    """Where the run file says that problems and model lie."""
    arms: Mapping[str, Callable[[Fields], None]]
    data: tuple[str, ...]
    demonstrations: tuple[tuple[str, ...], ...]
    """Arguments of `demonstrations.py`, a file each; none: `data.py` makes ``beginner.jsonl``."""
    model: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The example's."""
        return EXAMPLES / self.example


JOBS = {
    "text_to_sql": Job(
        "text_to_sql", "pair.yaml", "work/pair",
        {"two policies": keep_all, "one shared policy": share_one_policy, "writer alone": freeze_checker},
        ("--databases", "0", "--kinds", "lookups", "--train", "420", "--heldout", "100"),
        (("--flawed", "0", "--misjudged", "0", "--rewriter-habit", "0.6", "--times", "2"),
         ("--flawed", "0", "--misjudged", "0", "--rewriter-habit", "0.85", "--lenient", "0.95", "--times", "2")),
        ("--steps", "360", "120", "--layers", "2", "--vocabulary", "512", "--context", "256", "--batch", "32"),
    ),
    "kuhn_poker": Job(
        "kuhn_poker", "small.yaml", "work", {"both players": keep_all}, (), (),
        ("--steps", "120", "--layers", "2", "--vocabulary", "512", "--context", "64"),
    ),
}  # fmt: skip


def make_problems_and_model(job: Job, seed: int, work: Path) -> None:
    """As the example's Makefile makes them, from a seed; what is there already stays."""
    if (work / "model" / "model.safetensors").exists():
        return

    def run(*command: str | Path) -> None:
        quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        subprocess.run([sys.executable, *map(str, command), "--seed", str(seed)], cwd=job.folder, env=quiet, check=True)

    run("data.py", "--out", work, *job.data)
    files = [work / f"demonstrations-{number}.jsonl" for number in range(len(job.demonstrations))]
    for path, arguments in zip(files, job.demonstrations, strict=True):
        run("demonstrations.py", "--tasks", work / "train.jsonl", "--out", path, *arguments)
    run(SMALL_MODEL, "--demonstrations", *(files or [work / "beginner.jsonl"]), "--out", work / "model", *job.model)


def arrange(job: Job, arm: str, seed: int, work: Path, runs: Path) -> tuple[RunSettings, TrainJob]:
    """The settings of a run; ``work`` holds its problems and its model."""
    source = job.folder / job.file
    fields: Fields = copy.deepcopy(yaml.safe_load(source.read_text().replace(f"{job.place}/", f"{work}/")))
    job.arms[arm](fields)
    fields |= {"name": f"{job.example}-{arm.replace(' ', '-')}-{seed}", "runs": runs}
    for runner in fields["runners"]:
        runner["working_dir"] = job.folder
        if "python_executable" in runner:
            runner["python_executable"] = job.folder / runner["python_executable"]
    for learner in fields["learners"]:
        learner["seed"] = seed
    settings = validate_settings(RunSettings, fields, str(source))
    return settings, parse_job(settings, str(source))


async def run(settings: RunSettings, job: TrainJob) -> Fields:
    """Train from the start, and measure."""
    with RunDirectory(settings.runs / settings.name).lock(fresh=True) as directory:
        async with start_stack(directory, settings.bus, settings.name, settings.policies) as stack:
            figures = (await train(stack, settings, job.learners, job.eval, None)).figures
            endpoints = directory.read_endpoints()
            assert endpoints is not None and settings.store is not None
            client = connect(endpoints.sql, settings.store.database)
            kept = ("rollouts", "rollouts_lost", "rollouts_trained_twice", "seconds", "seconds_by_phase")
            return {
                **{name: figures[name] for name in kept},
                "evaluations": measure_evaluations(client, settings.name),
                "training": measure_training(client, settings.name),
            }


EVALUATIONS = """
SELECT t.labels['player'] AS player, r.evaluation AS sampling, t.weight_versions AS versions, count() AS rollouts,
    avg(ifNull(r.reward, 0)) AS reward, stddevSamp(ifNull(r.reward, 0)) / sqrt(count()) AS standard_error,
    avgIf(r.rewards['checker'], mapContains(r.rewards, 'checker')) AS verdicts
FROM rollouts AS r INNER JOIN tasks AS t ON r.run_id = t.run_id AND r.rollout_id = t.rollout_id
WHERE r.run_id = {run_id:String} AND r.mode = 'eval'
GROUP BY player, sampling, versions ORDER BY arraySum(mapValues(versions)), sampling, player
"""
# Of every step: the rewards of its rollouts, that of the run and those by name.
TRAINING = """
SELECT t.step AS step, avg(r.reward) AS reward, avgMap(r.rewards) AS rewards
FROM rollouts AS r INNER JOIN (
    SELECT DISTINCT step, rollout_id FROM training_rollouts WHERE run_id = {run_id:String} AND model = {model:String}
) AS t ON t.rollout_id = r.rollout_id
WHERE r.run_id = {run_id:String} AND r.outcome = 'ok' GROUP BY step ORDER BY step
"""
MAIN_MODEL = "SELECT any(model) FROM tasks WHERE run_id = {run_id:String}"


def measure_evaluations(client: Client, run_id: str) -> list[Fields]:
    """The rewards of each evaluation, of each player by itself where the tasks are labelled so."""
    rows = client.query(EVALUATIONS, parameters={"run_id": run_id}).named_results()
    return [_rounded(row) for row in rows]


def measure_training(client: Client, run_id: str) -> list[Fields]:
    """The mean rewards of each step of the main model."""
    (model,) = client.query(MAIN_MODEL, parameters={"run_id": run_id}).result_rows[0]
    rows = client.query(TRAINING, parameters={"run_id": run_id, "model": model}).named_results()
    return [_rounded(row) for row in rows]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4) if value == value else None  # no number: there is none
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value


def find_evaluation(result: Fields, sampling: str, *, after: bool, player: str = "") -> Fields:
    """The evaluation of a run before or after training."""
    of_kind = [each for each in result["evaluations"] if (each["sampling"], each["player"]) == (sampling, player)]
    return max(of_kind, key=_num_versions) if after else min(of_kind, key=_num_versions)


def _num_versions(evaluation: Fields) -> int:
    return sum(evaluation["versions"].values())


def key_of(result: Fields) -> tuple[str, str, int]:
    """What tells one run from another."""
    return result["job"], result["arm"], result["seed"]
