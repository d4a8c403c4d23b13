"""Agreement of engine and learner, judged by the fresh tokens of each step: there both compute one policy. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightningbus.alerts.table import MAX_APART_STEPS, MIN_FRESH_TOKENS, STOP_CLIPPED_SHARE, describe
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.settings.learner import LearnerSettings

MIN_EFFECTIVE_SAMPLE = 0.5
"""Smallest effective sample size of one update on fresh tokens, as a share: the same policy gives nearly 1."""
NUM_DEVIATIONS = 3.0
"""Standard deviations by which a share of tokens must exceed its bound: chance alone does so in 1 step of 740."""


def is_comparable(metrics: Mapping[str, float]) -> bool:
    """Return whether a step has enough fresh tokens, and none that was sampled with truncation or penalties.

    Those differ for another reason.
    """
    return metrics.get("truncated_share", 0.0) == 0 and metrics.get("agreement/tokens", 0.0) >= MIN_FRESH_TOKENS


def is_apart(metrics: Mapping[str, float], bound: float) -> bool:
    """Return whether more than a share ``bound`` of a step's fresh tokens is clipped, and not by chance.

    Only a step whose ratio is taken against the engine has the share.
    """
    share = metrics.get("agreement/clipped_share")
    return share is not None and is_comparable(metrics) and exceeds(share, metrics["agreement/tokens"], bound)


def exceeds(share: float, count: float, bound: float) -> bool:
    """Return whether a share of ``count`` tokens is above a bound by more than chance explains."""
    return share - NUM_DEVIATIONS * math.sqrt(bound * (1 - bound) / count) > bound


@dataclass
class PolicyAgreement:
    """Ends a learner whose steps train another policy than the one that samples."""

    settings: LearnerSettings
    _num_apart: int = 0

    @property
    def has_bound(self) -> bool:
        """Whether the settings ask for a comparison of engine and learner."""
        return self.settings.max_mismatch is not None and self.settings.engine.check_model

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raise `LearnerError` if a step trained noise, or several steps in a row trained another policy."""
        if not self.has_bound or not is_comparable(metrics):
            return
        self._refuse_noise(metrics)
        self._num_apart = self._num_apart + 1 if is_apart(metrics, STOP_CLIPPED_SHARE) else 0
        if self._num_apart >= MAX_APART_STEPS:
            share, k3 = metrics["agreement/clipped_share"], metrics["agreement/k3"]
            sentence = describe("policies_apart", share=share, k3=k3)
            raise LearnerError(f"{sentence}. So it was in {MAX_APART_STEPS} steps in a row: the learner ends")

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
