"""Effective number of tokens of an update, which limits how far it may move the weights.

With ``r = exp(log pi_current - log pi_behavior)`` per token: *current* is the learner at the start of the step,
*behavior* the engine that sampled the token.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from lightningbus.learner.trainer import Floats
from lightningbus.learner.training.distributed import ProcessGroup

MAX_LOG_RATIO = 20.0
"""Beyond it a ratio is as good as infinite, or 0."""


class EffectiveSample:
    """Sums over the tokens of one optimiser step, from the update's own forward pass; on every rank the same."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._sums: Any = None

    def add(self, log_ratios: Any) -> None:
        """Add the tokens of a micro-batch: ``log r``, a tensor of any shape."""
        import torch

        ratios = log_ratios.detach().double().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        count = ratios.new_tensor(ratios.numel())
        sums = torch.stack([count, ratios.sum(), ratios.square().sum()])
        self._sums = sums if self._sums is None else self._sums + sums

    @cached_property
    def share(self) -> float:
        """Return `effective_share` over all ranks. Every rank must call this, after all micro-batches are added."""
        sums = [0.0, 0.0, 0.0] if self._sums is None else self._sums.tolist()
        parts = self._group.all_gather({self._group.rank: sums})
        return effective_share(*(sum(column) for column in zip(*parts.values(), strict=True)))


def effective_sample_size(current: Sequence[Floats], behavior: Sequence[Floats], chosen: Sequence[Any]) -> float:
    """Return the effective share of tokens.

    Each argument has one array per sequence; ``chosen``, ``bool[N]`` each, selects the tokens that count.
    """
    log_ratios = [(now - sampled)[part] for now, sampled, part in zip(current, behavior, chosen, strict=True)]
    ratios = np.exp(np.clip(np.concatenate(log_ratios).astype(np.float64), -MAX_LOG_RATIO, MAX_LOG_RATIO))
    return effective_share(len(ratios), float(ratios.sum()), float((ratios**2).sum()))


def effective_share(count: float, total: float, squares: float) -> float:
    """Compute the effective sample size as a share of all tokens: ``(sum r)^2 / (n sum r^2)``, 1 if nothing has moved.

    Kong, *A note on importance sampling using standardized weights* (1992). The ratios are not truncated: that would
    hide what is measured.
    """
    return total**2 / (count * squares) if count else 1.0


def ess_scale(ess: float, bound: float) -> float:
    """Return the factor of a step's learning rate, ``min(1, ess / bound)``.

    So few effective tokens move the weights little.
    """
    return min(1.0, ess / bound) if bound > 0 else 1.0


@contextmanager
def scaled_learning_rate(engine: Any, scale: Callable[[], float]) -> Iterator[None]:
    """Scale the optimiser steps made in the block by ``scale()``, weight decay included.

    ``scale`` is called right before the weights move, with all gradients computed. A smaller loss would not do:
    clipping and Adam divide its size out again.
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
