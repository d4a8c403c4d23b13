"""An environment of verifiers 0.1: several turns, a tool, and a rubric of two functions."""

from typing import Any

import verifiers as vf
from datasets import Dataset


def multiply(left: int, right: int) -> int:
    """Multiply two integers.

    Args:
        left: the first factor
        right: the second factor
    """
    return left * right


def correct(completion: Any, answer: str, **_: Any) -> float:
    """1 if the last message has the answer."""
    return float(answer in completion[-1].content)


def num_messages(completion: Any, **_: Any) -> float:
    """How long the conversation was; of weight 0."""
    return float(len(completion))


def num_steps(state: Any, **_: Any) -> float:
    """A metric of weight 0 that fails where the state has no such field."""
    return float(state["steps"])


def graded(completion: Any, **_: Any) -> Any:
    """A part of the reward that fails: an error in one case, no number in the other."""
    return None if "nothing" in completion[-1].content else {}["grade"]


def load_environment(num_tasks: int = 4, has_faults: bool = False) -> Any:
    """What verifiers calls."""
    rows = [{"question": f"What is {n} times 7?", "answer": str(n * 7)} for n in range(2, num_tasks + 2)]
    rubric = vf.Rubric(funcs=[correct, num_messages, num_steps], weights=[1.0, 0.0, 0.0])
    if has_faults:
        rubric.add_reward_func(graded)
    train, evaluation = Dataset.from_list(rows[1:]), Dataset.from_list(rows[:1])
    return vf.ToolEnv(dataset=train, eval_dataset=evaluation, tools=[multiply], rubric=rubric, max_turns=4)
