"""An environment of verifiers 0.1 that passes further arguments on, with a rubric that may score groups or nothing."""

from typing import Any

import verifiers as vf
from datasets import Dataset


def brief(completion: Any, **_: Any) -> float:
    """1 for a short answer."""
    return float(len(completion[-1].content) < 10)


def briefest(completions: Any, **_: Any) -> list[float]:
    """1 for the shortest answers of a group."""
    lengths = [len(completion[-1].content) for completion in completions]
    return [float(length == min(lengths)) for length in lengths]


def load_environment(num_train: int = 2, rewards: str = "alone", **options: Any) -> Any:
    """Build the environment, for verifiers."""
    rows = [{"question": f"Say {number}.", "answer": str(number)} for number in range(num_train + 1)]
    functions = {"alone": [brief], "group": [brief, briefest], "none": []}[rewards]
    train, evaluation = Dataset.from_list(rows[1:]), Dataset.from_list(rows[:1])
    rubric = vf.Rubric(funcs=functions)
    return vf.SingleTurnEnv(dataset=train, eval_dataset=evaluation, rubric=rubric, **options)
