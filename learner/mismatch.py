"""Agreement of engine and learner, judged by the fresh tokens of each step: there both compute one policy. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightningbus.alerts.table import (
    MAX_APART_STEPS,
    MAX_CLIPPED_SHARE,
    MIN_FRESH_TOKENS,
    STOP_CLIPPED_SHARE,
    describe,
)
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.settings.learner import LearnerSettings

MIN_EFFECTIVE_SAMPLE = 0.5
"""Smallest effective sample size of one update on fresh tokens, as a share: the same policy gives nearly 1."""
NUM_DEVIATIONS = 3.0
"""Standard deviations by which a share of tokens must exceed its bound: chance alone does so in 1 step of 740."""


@dataclass
class PolicyAgreement:
    """Judges a learner's steps in order."""

    settings: LearnerSettings
    problem: str = ""
    """Sentence about the newest step with fresh tokens in which both policies are apart; empty: they agree."""
    _num_apart: int = 0

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """Judge a training step; raise `LearnerError` if it trained noise, or several in a row trained another policy.

        Tokens that were sampled with truncation or penalties differ for another reason.
        """
        if self.settings.max_mismatch is None or not self.settings.engine.check_model:
            return
        num_tokens = metrics.get("agreement/tokens", 0.0)
        if metrics.get("truncated_share", 0.0) > 0 or num_tokens < MIN_FRESH_TOKENS:
            return
        self._refuse_noise(metrics)
        if not self.settings.algorithm.rollout_correction.bypass_mode:
            return  # the ratio is the learner's own, and importance weights correct for the engine
        share, k3 = metrics["agreement/clipped_share"], metrics["agreement/k3"]
        is_apart = exceeds(share, num_tokens, MAX_CLIPPED_SHARE)
        self.problem = describe("policies_apart", step=step, share=share, k3=k3) if is_apart else ""
        self._num_apart = self._num_apart + 1 if exceeds(share, num_tokens, STOP_CLIPPED_SHARE) else 0
        if self._num_apart >= MAX_APART_STEPS:
            raise LearnerError(f"{self.problem}. So it was in {MAX_APART_STEPS} steps in a row: the learner ends")

    def _refuse_noise(self, metrics: Mapping[str, float]) -> None:
        bound, k3 = self.settings.max_mismatch, metrics["agreement/k3"]
        ess = metrics.get("off_policy/ess", 1.0) if metrics.get("staleness/max", 0.0) == 0 else 1.0
        findings = []
        if bound is not None and not abs(k3) <= bound:
            findings.append(f"their k3 divergence is {k3:.3g} nats per token, above max_mismatch ({bound:g})")
        if self.settings.has_single_update and not ess >= MIN_EFFECTIVE_SAMPLE:
            findings.append(f"the effective sample size is {ess:.2g}, below {MIN_EFFECTIVE_SAMPLE:g}")
        if findings:
            raise LearnerError(
                "engine and learner compute different policies: on tokens of the newest version "
                f"{', and '.join(findings)}. A step on them would train noise"
            )


def exceeds(share: float, count: float, bound: float) -> bool:
    """Return whether a share of ``count`` tokens is above a bound by more than chance explains."""
    return share - NUM_DEVIATIONS * math.sqrt(bound * (1 - bound) / count) > bound
