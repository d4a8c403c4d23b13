"""Reward functions of verifiers 0.1: metrics alone, those of a group, and errors, which it logs and scores as 0."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RubricFailure:
    """An error that a reward function raised, or that its return value is no number."""

    error: Exception
    has_weight: bool
    """Whether the function is a part of the reward; else it is a metric alone."""


_recorded: ContextVar[dict[str, RubricFailure]] = ContextVar("recorded")


@contextmanager
def recording_failures() -> Iterator[dict[str, RubricFailure]]:
    """Collect the failures in this block, and in tasks that it starts, by the name of the function."""
    failures: dict[str, RubricFailure] = {}
    token = _recorded.set(failures)
    try:
        yield failures
    finally:
        _recorded.reset(token)


def raise_failure(failures: dict[str, RubricFailure]) -> None:
    """Raise `RuntimeError` for the first failure of a function that is a part of the reward."""
    for name, failure in failures.items():
        if failure.has_weight:
            reason = f"{type(failure.error).__name__}: {failure.error}"
            raise RuntimeError(f"the reward function {name} failed: {reason}") from failure.error


def check_scores_alone(rubric: Any, score_alone: Callable[..., Any]) -> None:
    """Raise ValueError for a rubric, or one within it, that cannot score a rollout by itself.

    ``score_alone`` is the method of verifiers' `Rubric` that scores one rollout. It refuses a function of a group, and
    a rubric without functions. A class with a method of its own is not checked.
    """
    for each in _list_rubrics(rubric):
        if getattr(type(each), "score_rollout", score_alone) is not score_alone:
            continue
        is_of_group = getattr(each, "_is_group_func", lambda function: False)
        if names := [_name_function(function) for function in each.funcs if is_of_group(function)]:
            raise ValueError(
                f"the reward function {names[0]} scores the rollouts of a group together, and here each rollout is "
                "scored alone: it must take `completion`, not lists such as `completions`, and return a number"
            )
        if not each.funcs:
            raise ValueError("the environment has a rubric without a reward function, so no rollout has a reward")


def watch_rubric(rubric: Any) -> None:
    """Have the functions of a rubric, and of the rubrics within it, record how they fail; call it once for each."""
    for each in list(_list_rubrics(rubric)):
        each.funcs = [_watch(*pair) for pair in zip(each.funcs, each.weights, strict=True)]


def find_metrics(rubric: Any) -> frozenset[str]:
    """Return the names of the functions of a rubric, and of those within it, that are no part of a reward: weight 0."""
    is_part: dict[str, bool] = {}
    for each in _list_rubrics(rubric):
        for function, weight in zip(each.funcs, each.weights, strict=True):
            name = _name_function(function)
            is_part[name] = is_part.get(name, False) or bool(weight)
    return frozenset(name for name, is_weighed in is_part.items() if not is_weighed)


def _list_rubrics(rubric: Any) -> Iterator[Any]:
    """Yield a rubric after those within it."""
    for inner in getattr(rubric, "rubrics", ()):
        yield from _list_rubrics(inner)
    for environment in getattr(rubric, "env_map", {}).values():  # those of an `EnvGroup`
        yield from _list_rubrics(environment.rubric)
    yield rubric


def _name_function(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", repr(function)))


def _watch(function: Callable[..., Any], weight: float) -> Callable[..., Any]:
    """Wrap a reward function; verifiers reads the names of its parameters, which stay."""

    @functools.wraps(function)
    async def watched(*arguments: Any, **named: Any) -> Any:
        try:
            value = function(*arguments, **named)
            value = await value if inspect.isawaitable(value) else value
            return value if isinstance(value, list) else float(value)
        except Exception as error:
            _recorded.get({})[_name_function(function)] = RubricFailure(error, bool(weight))
            raise

    return watched
