"""Time and held-out reward of `lightningbus demo --model tiny`, the calculator job through every part of the system."""

import json
from typing import Any

from benchmarks.gpu.context import Context
from benchmarks.gpu.steps.command import run_lightningbus
from benchmarks.results import Result


def measure(context: Context) -> None:
    """Seconds of the job, and the share of held-out problems solved before and after; raises `CommandError`."""
    runs = context.work / context.name
    run_lightningbus("demo", "--model", "tiny", "--steps", str(context.scale.demo_steps), "--runs", str(runs))
    figures = json.loads((runs / "demo" / "results.json").read_text())
    for result in summarize(figures):
        context.report(result)


def summarize(figures: dict[str, Any]) -> list[Result]:
    """Of ``results.json``. Pure."""
    steps = f"{figures['steps']} steps, {figures['rollouts']} rollouts, {figures['rollouts_lost']} lost"
    note = "beside it: before training"
    return [
        Result("the job, from start to end", figures["seconds"], "s", note=steps),
        Result("held-out reward, greedy", figures["greedy_after"], "of 1", figures["greedy_before"], note=note),
        Result("held-out reward, sampled", figures["sampled_after"], "of 1", figures["sampled_before"], note=note),
    ]
