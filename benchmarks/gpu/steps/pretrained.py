"""SmolLM2-135M-Instruct trained on sums of Reasoning Gym, by the example's own settings: seconds, held-out reward."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.context import Context
from benchmarks.gpu.steps.command import run_lightningbus
from benchmarks.results import Result
from lightningbus.inference.engine.vllm_command import has_gpu
from lightningbus.run.pretrained.catalog import SMOLLM2
from lightningbus.run.pretrained.folder import provide_folder

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "reasoning_gym"
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
NUM_TASKS = {"train": 100, "heldout": 40}
ENGINE_SHARE = 0.4
"""Share of the GPU's memory for the engine; the rest is the learner's."""
BYTE_CONTEXT = 512
"""Context of the dry run's model, which has a token for each byte."""
EVALUATIONS = 4
"""Evaluations on held-out tasks, the first of the model as it is."""


def measure(context: Context) -> None:
    """Seconds of the run and of its phases, and the held-out reward by version; raises `CommandError`."""
    place = context.work / context.name
    shutil.rmtree(place, ignore_errors=True)  # of a run that was stopped
    place.mkdir(parents=True)
    python = find_python()
    words = ["chain_sum", "--settings", json.dumps(SUMS), "--examples", "2", "--out", str(place)]
    sizes = [word for name, count in NUM_TASKS.items() for word in (f"--{name}", str(count))]
    subprocess.run([python, str(EXAMPLE / "data.py"), *words, *sizes], check=True)
    model = asyncio.run(provide_folder(SMOLLM2, print)) if context.scale.is_pretrained else context.model("small")
    settings = place / "run.yaml"
    fields = yaml.safe_load((EXAMPLE / "small.yaml").read_text())
    settings.write_text(json.dumps(make_settings(context, fields, model, python, place), default=str))
    run_lightningbus("train", "-c", str(settings), cwd=place)
    for result in summarize(json.loads((place / "runs" / "reasoning_gym" / "results.json").read_text())):
        context.report(result)


def find_python() -> str:
    """Return an interpreter with Reasoning Gym: this one, or that of the example's environment, which is made."""
    if find_spec("reasoning_gym") is not None:
        return sys.executable
    subprocess.run(["make", "-C", str(EXAMPLE), "env", f"PYTHON={sys.executable}"], check=True)
    return str(EXAMPLE / ".venv" / "bin" / "python")


def make_settings(context: Context, fields: Mapping[str, Any], model: Path, python: str, place: Path) -> dict[str, Any]:
    """Adapt the example's run file to the model, the GPU and the number of steps. Pure, but that it looks for a GPU."""
    scale = context.scale
    (node,), steps = fields["inference"], scale.pretrained_steps
    num_tokens = node["max_model_len"] if scale.is_pretrained else BYTE_CONTEXT
    engine = {"model_path": model, "max_model_len": num_tokens, "max_num_seqs": 64}
    shared = scale.engine(ENGINE_SHARE)
    if has_gpu():
        engine["vllm_args"] = shared["vllm_args"]
    else:
        engine |= {"dtype": "float32", "cpu_threads": scale.cpu_threads, "vllm_args": node["vllm_args"]}
    places = {"working_dir": EXAMPLE, "python_executable": python}
    runners = [each | places for each in fields["runners"]]
    learner = fields["learner"] | {
        "model_path": model,
        "tasks": place / "train.jsonl",
        "seq_len": num_tokens,
        "max_steps": steps,
        "checkpoint_interval": steps,
        "cpu_threads": scale.cpu_threads,
    }
    if has_gpu():
        learner["weights"] = {"dtype": "bfloat16"}  # as the engine computes
        learner["actor"] = learner["actor"] | {"ppo_max_token_len_per_gpu": scale.max_tokens}
    evaluation = fields["eval"] | {
        "tasks": place / "heldout.jsonl",
        "every": max(1, steps // (EVALUATIONS - 1)),
    }
    return {
        **fields,
        "runs": place / "runs",
        "inference": [engine],
        "runners": runners,
        "learner": learner,
        "eval": evaluation,
    }


def summarize(figures: Mapping[str, Any]) -> list[Result]:
    """Rows of ``results.json``. Pure."""
    counts = f"{figures['steps']} steps, {figures['rollouts']} rollouts, {figures['rollouts_lost']} lost"
    rows = [Result("the run, from start to end", figures["seconds"], "s", note=counts)]
    rows += [Result(f"seconds: {phase}", value, "s") for phase, value in figures["seconds_by_phase"].items()]
    rows += [
        Result(f"held-out reward of version {each['version']}, {each['label']}", each["mean_reward"], "of 1")
        for each in figures["evaluations"]
    ]
    return rows
