"""The calculator agent of `examples/calculator`, some runs of which take long: a tool that answers late."""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "calculator"))

import agent as calculator

SHARE = 0.05
SECONDS = (3.0, 8.0)
"""One rollout in twenty waits this long between its two model calls; held-out problems never do."""

answer_at_once = calculator.use_tool


def answer_late(said: str) -> str:
    if random.random() < SHARE:
        time.sleep(random.uniform(*SECONDS))
    return answer_at_once(said)


def solve(task: dict) -> float:
    calculator.use_tool = answer_at_once if task.get("heldout") else answer_late
    return calculator.solve(task)
