"""Agents of two turns, bus, store, vLLM and learner on one GPU: the time of a run, by its phases."""

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.context import Context
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.steps.command import run_lightningbus
from benchmarks.results import Result

RUN = "loop"
AGENT = Path(__file__).resolve().parents[1] / "two_turns"
ENGINE_SHARE = 0.4
"""Share of the GPU's memory for the engine; the rest is the learner's."""
MAX_CONTEXT = 2048
"""Tokens of a rollout: two answers, whose text may have several tokens for each that was sampled."""
MICRO_BATCH_TOKENS = 8192
NUM_TASKS = {"train": 256, "heldout": 16}
COUNTS = ("steps", "rollouts", "rollouts_lost", "tokens_sampled", "tokens_trained", "mean_staleness")


def measure(context: Context, size: Size) -> None:
    """Seconds of a training job and of its phases, and what it sampled and trained; raises `CommandError`."""
    place = context.work / context.name
    shutil.rmtree(place, ignore_errors=True)  # of a run that was stopped
    place.mkdir(parents=True)
    for name, count in NUM_TASKS.items():
        _write_tasks(place / f"{name}.jsonl", name, count, context.scale.answer_tokens // 2)
    settings = place / "run.yaml"
    settings.write_text(json.dumps(make_settings(context, size, place), default=str))
    run_lightningbus("train", "-c", str(settings), cwd=place)
    results = place / "runs" / RUN / "results.json"
    for result in summarize(json.loads(results.read_text())):
        context.report(result)


def make_settings(context: Context, size: Size, place: Path) -> dict[str, Any]:
    """The run file; JSON is YAML."""
    scale, model = context.scale, context.model(size)
    max_context = min(MAX_CONTEXT, scale.shapes[size].fields["max_position_embeddings"])
    node = scale.engine(ENGINE_SHARE) | {"model_path": model, "max_model_len": max_context, "max_num_seqs": 64}
    runner = {"entrypoint": "agent:solve", "working_dir": AGENT, "concurrency": 32}
    return {
        "name": RUN,
        "bus": {"port": 0},
        "store": {"http_port": 0},
        "inference": [node],
        "runners": [runner, runner],
        "learner": {
            "model_path": model,
            "tasks": place / "train.jsonl",
            "group_size": 8,
            "groups_per_step": 8,
            "max_steps": scale.loop_steps,
            "max_staleness": 1,
            "seq_len": max_context,
            "cpu_threads": scale.cpu_threads,
            "actor": {"ppo_max_token_len_per_gpu": MICRO_BATCH_TOKENS, "optim": {"lr": 1e-6}},
        },
        "eval": {"tasks": place / "heldout.jsonl"},
    }


def _write_tasks(path: Path, name: str, count: int, max_tokens: int) -> None:
    inputs = [{"question": f"{number} plus {7 * number}?", "max_tokens": max_tokens} for number in range(count)]
    lines = [json.dumps({"id": f"{name}-{number}", "input": fields}) for number, fields in enumerate(inputs)]
    path.write_text("\n".join(lines) + "\n")


def summarize(figures: dict[str, Any]) -> list[Result]:
    """Rows of ``results.json``. Pure."""
    phases = [(f"seconds: {phase}", seconds, "s") for phase, seconds in figures["seconds_by_phase"].items()]
    counts = [(name.replace("_", " "), figures[name], "") for name in COUNTS]
    rows = [("the run, from start to end", figures["seconds"], "s"), *phases, *counts]
    return [Result(case, None if value is None else float(value), unit) for case, value, unit in rows]
