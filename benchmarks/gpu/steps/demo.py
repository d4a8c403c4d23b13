"""The calculator job through every part of the system: `lightningbus demo`, its time and its held-out reward."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.gpu.context import Context
from benchmarks.results import Result


class DemoError(Exception):
    """The demo ended with an error; the text is its last words."""


def measure(context: Context) -> None:
    """Seconds of the job, and the share of held-out problems solved before and after; raises `DemoError`."""
    runs = context.work / context.name
    command = [
        sys.executable,
        "-m",
        "lightningbus",
        "demo",
        "--steps",
        str(context.scale.demo_steps),
        "--runs",
        str(runs),
    ]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        lines = [line for line in completed.stderr.splitlines() if line.strip()]
        raise DemoError(f"the demo ended with {completed.returncode}: {lines[-1] if lines else 'no output'}")
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
