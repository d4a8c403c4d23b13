"""The calculator agent of `examples/calculator` with a slow tool: at random, or in tasks of two questions."""

import importlib.util
import random
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "calculator" / "agent.py"
spec = importlib.util.spec_from_file_location("calculator", EXAMPLE)
calculator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calculator)

SLOW_SHARE = 0.05
SLOW_SECONDS = (3.0, 8.0)
"""Job `long_tail`: one rollout in twenty waits this long between its two model calls."""
HARD_SECONDS = 6.0
"""Job `slow_is_hard`: a task of two questions waits this long in all, ten times what another takes."""

answer_at_once = calculator.use_tool


def answer_late(seconds: float) -> object:
    """The tool, after a wait."""

    def answer(text: str) -> str:
        time.sleep(seconds)
        return answer_at_once(text)

    return answer


def solve(task: dict) -> float:
    """Reward 1 if every question of the task is answered right, else 0; held-out tasks never wait."""
    questions = [task, *task.get("more", [])]
    seconds = 0.0
    if not task.get("heldout"):
        slow = random.random() < SLOW_SHARE
        seconds = HARD_SECONDS / 2 if len(questions) > 1 else random.uniform(*SLOW_SECONDS) * task["long_tail"] * slow
    calculator.use_tool = answer_late(seconds)
    rewards = [calculator.solve(question) for question in questions]
    return min(rewards)
