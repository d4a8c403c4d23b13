"""Functions of a rubric that are metrics alone, of weight 0 wherever they stand, and those that score a group."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightningbus.environments.rubric_failures import check_scores_alone, find_metrics, watch_rubric


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


class Scorer:
    """A rubric that scores each rollout alone, as verifiers' own does."""

    def __init__(self, *functions: Any, **within: Any) -> None:
        self.funcs, self.weights = list(functions), [1.0] * len(functions)
        vars(self).update(within)

    def score_rollout(self) -> None: ...

    def _is_group_func(self, function: Any) -> bool:
        return function is brief


class Router(Scorer):
    """A rubric with a way of its own."""

    def score_rollout(self) -> None: ...


def test_a_rubric_that_cannot_score_a_rollout_alone_is_refused_by_its_function() -> None:
    check_scores_alone(Router(brief, rubrics=[Scorer(correct), Router()]), Scorer.score_rollout)
    with pytest.raises(ValueError, match="the reward function brief scores the rollouts of a group together"):
        check_scores_alone(Router(rubrics=[Scorer(correct, brief)]), Scorer.score_rollout)
    with pytest.raises(ValueError, match="a rubric without a reward function"):
        check_scores_alone(Router(rubrics=[Scorer(correct), Scorer()]), Scorer.score_rollout)
