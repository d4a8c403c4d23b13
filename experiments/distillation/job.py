"""Runs of the calculator job that learn from rewards, from a teacher, from recorded states, and from good answers."""

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightningbus as lb
from experiments.distillation.plain import build_chat

EXAMPLE = Path(lb.__file__).parent / "examples" / "calculator"
HELD_OUT = 100
SHARE = 0.95
"""Target of every run, as a share of the teacher's accuracy."""
SFT_BATCH = 16
COSINE = {"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}
CHATS_OPTIM: dict[str, Any] = {"lr": 5e-4, **COSINE}
CHATS_EPOCHS = 8
STATES_AGENT = "lightningbus.tasks.recorded_prompts:answer"
FIRST_RIGHT = """
SELECT execution_id FROM rollouts WHERE mode = 'train' AND reward = 1 ORDER BY ended_at LIMIT 1 BY task_id
"""
# The rollouts of training that had ended when the version was made.
SPENT = """
SELECT s.version AS version, countIf(r.ended_at <= s.ended_at) AS rollouts,
    countIf(r.ended_at <= s.ended_at AND r.agent = 'default') AS agent_rollouts,
    dateDiff('millisecond', min(r.started_at), s.ended_at) / 1000 AS seconds
FROM training_steps AS s CROSS JOIN (SELECT agent, started_at, ended_at FROM rollouts WHERE mode = 'train') AS r
GROUP BY s.version, s.ended_at ORDER BY version
"""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of learning: rollouts of a step, most steps, the fields of its learner, and chats to begin with."""

    groups: int
    samples: int
    steps: int
    learner: dict[str, Any]
    every: int = 2
    """Versions between two evaluations."""
    num_chats: int = 0
    """Right chats that the model imitates before."""


REWARDED: dict[str, Any] = {"actor": {"ppo_epochs": 4, "optim": {"lr": 2e-4, **COSINE}}}
AFTER_CHATS: dict[str, Any] = {"actor": {"ppo_epochs": 4, "optim": {"lr": 1e-4, **COSINE}}}
TAUGHT: dict[str, Any] = {
    "actor": {"ppo_epochs": 4, "optim": {"lr": 2e-4, "lr_warmup_steps": 3, **COSINE}},
    "algorithm": {"adv_estimator": "reinforce_plus_plus"},  # it takes groups of one; without rewards it is idle
    "teacher": {"model": "teacher", "top_k": 8},
    "loss_weights": {"rl": 0, "kl": 1},
}
ARMS = {
    "rewards": Arm(8, 8, 72, REWARDED, every=4),
    "teacher": Arm(8, 1, 104, TAUGHT, every=8),
    "states": Arm(8, 1, 104, {**TAUGHT, "agent": "states"}, every=8),
    "answers, then rewards": Arm(16, 4, 72, AFTER_CHATS, every=4, num_chats=96),
}


class Target(lb.Callback):
    """Ends a run once an evaluation is at the target."""

    def __init__(self, reward: float) -> None:
        self._reward = reward

    def on_evaluation(self, evaluation: lb.Evaluation) -> str | None:
        """Ask to stop at the target."""
        return "at the target" if evaluation.label == "sampled" and evaluation.mean_reward >= self._reward else None


def read_curve(result: lb.TrainResult) -> list[dict[str, Any]]:
    """Read a run's evaluations, each with the rollouts and seconds of training until then."""
    spent = {row["version"]: row for row in query(result.directory, SPENT)}
    return [
        {
            "version": each.version,
            "label": each.label,
            "reward": each.mean_reward,
            "rollouts": spent[each.version]["rollouts"] if each.version else 0,
            "agent_rollouts": spent[each.version]["agent_rollouts"] if each.version else 0,
            "seconds": spent[each.version]["seconds"] if each.version else 0.0,
        }
        for each in result.evaluations
    ]


class Job:
    """The problems, the model and the teacher of a seed, and the runs on them."""

    def __init__(self, seed: int, work: Path) -> None:
        self._seed, self._work = seed, work
        self.model, self.teacher = work / "model", work / "teacher"
        self.tasks, self.held_out = work / "train.jsonl", work / "heldout.jsonl"
        self._chats = work / "chats.jsonl"

    def prepare(self) -> None:
        """Make problems, the mostly wrong model, right chats, and a teacher that has learned from them."""
        if (self.teacher / "model.safetensors").exists():
            return
        self._work.mkdir(parents=True, exist_ok=True)
        _python(EXAMPLE / "problems.py", "--seed", self._seed, "--heldout", HELD_OUT, "--out", self._work)
        _python(EXAMPLE / "model.py", "--threads", 1, "--seed", self._seed, "--out", self.model)
        lines = [json.loads(line) for line in self.tasks.read_text().splitlines()]
        chats = [json.dumps({"messages": build_chat(line["input"]["question"])}) + "\n" for line in lines]
        self._chats.write_text("".join(chats))
        self.imitate("teacher", [self._chats, "--model-path", self.model], self.teacher, CHATS_EPOCHS)

    def imitate(self, name: str, data: list[Any], out: Path, epochs: int) -> float:
        """Train on answers by ``lightningbus sft``; return its seconds, all of them."""
        config = self._work / f"{name}.yaml"
        learner = {
            "seq_len": 128,
            "cpu_threads": 1,
            "checkpoint_interval": 1000,
            "actor": {"loss_agg_mode": "token-mean", "optim": CHATS_OPTIM},
        }
        config.write_text(json.dumps({"bus": {"port": 0}, "runs": str(self._work / "runs"), "learner": learner}))
        started = time.monotonic()
        flags = ["--name", name, "-c", config, "--epochs", epochs, "--batch-size", SFT_BATCH, "--out", out]
        run_ours("sft", *data, *flags)
        return time.monotonic() - started

    def train(self, name: str, target: float) -> dict[str, Any]:
        """Train in one way until an evaluation is at the target; return what was measured."""
        arm, model, seconds_before = ARMS[name], self.model, 0.0
        if arm.num_chats:
            model, few = self._work / "warm", self._work / "few.jsonl"
            shutil.rmtree(model, ignore_errors=True)  # of an experiment that was stopped
            chats = self._chats.read_text().splitlines(keepends=True)
            few.write_text("".join(random.Random(self._seed).sample(chats, arm.num_chats)))
            seconds_before = self.imitate("warm-sft", [few, "--model-path", self.model], model, CHATS_EPOCHS)
        run = name.split(",", maxsplit=1)[0]
        settings = self._settings(run, arm, model)
        result = lb.train(settings=settings, callbacks=[Target(target)])
        curve = read_curve(result)
        figures = result.figures
        return {
            "arm": name,
            "seed": self._seed,
            "target": target,
            "curve": curve,
            "seconds_before": round(seconds_before, 1),
            "lost": figures["rollouts_lost"],
            "twice": figures["rollouts_trained_twice"],
        }

    def _settings(self, run: str, arm: Arm, model: Path) -> dict[str, Any]:
        node = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 64, "cpu_threads": 1}
        taught = "teacher" in arm.learner
        nodes = [{**node, "model_path": str(model)}]
        nodes += [{**node, "model_path": str(self.teacher), "model": "teacher", "frozen": True}] * taught
        agent = {"entrypoint": "agent:solve", "working_dir": str(EXAMPLE), "concurrency": 8}
        states = {"entrypoint": STATES_AGENT, "agent_name": "states", "concurrency": 16}
        from_states = arm.learner.get("agent") == "states"
        return {
            "name": run,
            "runs": str(self._work / "runs"),
            "bus": {"port": 0},
            "store": {"http_port": 0},
            "inference": nodes,
            "runners": [agent, {**states, "max_concurrent_per_process": 16} if from_states else agent],
            "learner": {
                "model_path": str(model),
                "tasks": str(self.write_states() if from_states else self.tasks),
                "group_size": arm.samples,
                "groups_per_step": arm.groups,
                "max_steps": arm.steps,
                "max_staleness": 1,
                "seq_len": 128,
                "seed": self._seed,
                "cpu_threads": 1,
                "checkpoint_interval": 1000,
                **arm.learner,
            },
            "eval": {"tasks": str(self.held_out), "sampling": ["sampled"], "every": arm.every},
        }

    def write_states(self) -> Path:
        """Write the prompts of a right rollout of each task, the first on record, as tasks."""
        path = self._work / "states.jsonl"
        run_ours(
            "rollouts", "export", path, "--prompts", "--run", self._work / "runs" / "rewards", "--query", FIRST_RIGHT
        )
        return path

    def write_best(self) -> Path:
        """Write the tokens of the best rollouts of the run with rewards, one of each task, to a Parquet file."""
        path = self._work / "best.parquet"
        run = self._work / "runs" / "rewards"
        run_ours("rollouts", "export", path, "--run", run, "--top-k", 1, "--min-reward", 1)
        return path


def query(run: Path, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query to the store of a run."""
    rows: list[dict[str, Any]] = json.loads(run_ours("query", "--run", run, "--json", sql))
    return rows


def run_ours(*arguments: Any) -> str:
    """Run a command of lightningbus; return its output. Raises CalledProcessError if it fails."""
    return _python("-m", "lightningbus", *arguments)


def _python(*arguments: Any) -> str:
    """Run Python; return its output. Raises CalledProcessError if it fails."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
