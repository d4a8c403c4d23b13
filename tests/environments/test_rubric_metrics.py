"""Functions of a rubric that are metrics alone: of weight 0 wherever they stand."""

from types import SimpleNamespace
from typing import Any

from lightningbus.environments.rubric_failures import find_metrics, watch_rubric


def correct(**_: Any) -> float:
    """A part of the reward."""
    return 1.0


def brief(**_: Any) -> float:
    """A part of the reward in one rubric."""
    return 1.0


def num_turns(**_: Any) -> float:
    """A metric."""
    return 3.0


def rubric(*pairs: tuple[Any, float], **within: Any) -> SimpleNamespace:
    """An object with what verifiers' rubrics have."""
    return SimpleNamespace(funcs=[pair[0] for pair in pairs], weights=[pair[1] for pair in pairs], **within)


def test_functions_of_weight_0_are_metrics_in_whatever_rubric_they_stand() -> None:
    inner = rubric((num_turns, 0.0), (brief, 0.0))
    environment = SimpleNamespace(rubric=rubric((brief, -0.5)))
    group = rubric((correct, 1.0), rubrics=[inner], env_map={"a": environment})
    assert find_metrics(group) == {"num_turns"}
    watch_rubric(group)
    assert find_metrics(group) == {"num_turns"}, "also once they are watched"
    assert find_metrics(rubric()) == frozenset()
