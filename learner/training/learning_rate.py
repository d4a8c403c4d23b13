"""The learning rate of a single step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def scaled_learning_rate(engine: Any, scale: float) -> Iterator[None]:
    """Optimiser steps made here move the weights ``scale`` times as far, weight decay included.

    A smaller loss would not do: clipping and Adam divide its size out again.
    """
    groups = engine.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate * scale
    try:
        yield
    finally:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
