"""The calculator agent of `examples/calculator`, some runs of which take long: a tool that answers late."""

import importlib.util
import random
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "calculator" / "agent.py"
spec = importlib.util.spec_from_file_location("calculator", EXAMPLE)
calculator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calculator)

SHARE = 0.05
SECONDS = (3.0, 8.0)
"""One rollout in twenty waits this long between its two model calls; held-out problems never do."""

answer_at_once = calculator.use_tool


def answer_late(text: str) -> str:
    if random.random() < SHARE:
        time.sleep(random.uniform(*SECONDS))
    return answer_at_once(text)


def solve(task: dict) -> float:
    calculator.use_tool = answer_at_once if task.get("heldout") else answer_late
    return calculator.solve(task)
