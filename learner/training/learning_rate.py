"""The learning rate of a single step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def scaled_learning_rate(engine: Any, scale: Callable[[], float]) -> Iterator[None]:
    """Optimiser steps made here move the weights ``scale()`` times as far, weight decay included.

    It is called right before the weights move, with all gradients computed. A smaller loss would not do: clipping and
    Adam divide its size out again.
    """
    groups = engine.optimizer.param_groups
    rates = [group["lr"] for group in groups]

    def apply_scale(*_: Any) -> None:
        factor = scale()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor

    hook = engine.optimizer.register_step_pre_hook(apply_scale)
    try:
        yield
    finally:
        hook.remove()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
