"""Whether engine and learner compute different policies: seen on tokens of the newest version. Pure."""

from collections.abc import Mapping

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.settings.learner import LearnerSettings

MIN_EFFECTIVE_SAMPLE = 0.5
"""Smallest effective sample size of one update on fresh tokens, as a share: the same policy gives nearly 1."""


def check_mismatch(settings: LearnerSettings, metrics: Mapping[str, float]) -> None:
    """Raise `LearnerError` if the engine is too far from the learner in a step that can show it.

    Tokens of older versions, and those sampled with truncation or penalties, differ for another reason.
    """
    bound = settings.max_mismatch
    is_comparable = metrics.get("staleness/max", 0.0) == 0 and metrics.get("truncated_share", 0.0) == 0
    if bound is None or not settings.engine.check_model or not is_comparable:
        return
    kl, ess = metrics.get("rollout_corr/k3_kl", 0.0), metrics.get("off_policy/ess", 1.0)
    findings = []
    if not abs(kl) <= bound:
        findings.append(f"their k3 divergence is {kl:.3g} nats per token, above max_mismatch ({bound:g})")
    if settings.has_single_update and not ess >= MIN_EFFECTIVE_SAMPLE:
        findings.append(f"the effective sample size is {ess:.2g}, below {MIN_EFFECTIVE_SAMPLE:g}")
    if findings:
        raise LearnerError(
            "engine and learner compute different policies: on tokens of the newest version "
            f"{', and '.join(findings)}. A step on them would train noise"
        )
