"""Optimiser steps that changed nothing: verl skips one whose gradient norm is not finite. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightningbus.learner.errors import LearnerError

NETWORKS = ("actor", "critic")
MAX_STEPS = 3
"""Training steps in a row that may change nothing."""
MAX_SCALED_STEPS = 20
"""Training steps in a row that may change nothing in fp16: verl halves its loss scale, 2^16 at first, after each."""


def count_skipped(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics ``actor/skipped_updates`` and, with a critic, ``critic/skipped_updates``."""
    norms: dict[str, list[float]] = {}
    for update in updates:
        for who in NETWORKS:
            if f"{who}/grad_norm" in update:
                norms.setdefault(who, []).append(update[f"{who}/grad_norm"])
    counts = {who: sum(not math.isfinite(norm) for norm in values) for who, values in norms.items()}
    return {f"{who}/skipped_updates": float(count) for who, count in counts.items()}


@dataclass
class SkippedSteps:
    """Counts the training steps in a row that changed nothing."""

    limit: int = MAX_STEPS
    _in_a_row: dict[str, int] = field(default_factory=dict)

    def check(self, updates: Sequence[Mapping[str, float]]) -> list[str]:
        """Return warnings about a training step's updates; raises `LearnerError` if too many steps changed nothing."""
        warnings = []
        for name, count in count_skipped(updates).items():
            who = name.partition("/")[0]
            total = sum(f"{who}/grad_norm" in update for update in updates)
            self._in_a_row[who] = self._in_a_row.get(who, 0) + 1 if count == total else 0
            if count:
                warnings.append(
                    f"{count:g} of {total} updates of the {who} were skipped and changed nothing: the norm of their "
                    f"gradient was not finite ({find_not_finite(updates)})"
                )
            if self._in_a_row[who] >= self.limit:
                raise LearnerError(
                    f"the {who} has learned nothing in {self.limit} steps in a row: not finite were "
                    f"{find_not_finite(updates)}; look at the rewards and the loss, and lower {who}.optim.lr"
                )
        return warnings


def find_not_finite(updates: Sequence[Mapping[str, float]]) -> str:
    """List the metrics that are not finite, each with its value."""
    not_finite = {name: value for update in updates for name, value in update.items() if not math.isfinite(value)}
    return ", ".join(f"{name} {value:g}" for name, value in sorted(not_finite.items()))
