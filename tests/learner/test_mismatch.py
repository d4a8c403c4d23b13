"""A learner whose engine samples from another policy says so, and ends, though every step of it could be made."""

from pathlib import Path

import numpy as np
import pytest

from lightningbus.alerts.table import describe
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.findings import find_problems
from lightningbus.learner.mismatch import PolicyAgreement, exceeds
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.fresh_tokens import compare_fresh, find_fresh
from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence

STEP = {"rollouts": 8.0, "reward/mean": 0.5, "reward/std": 0.5, "actor/grad_norm": 1.0}
FRESH = {"staleness/max": 0.0, "truncated_share": 0.0, "agreement/tokens": 500.0}
ROUNDING = {"agreement/k3": 0.002, "agreement/clipped_share": 0.005, "off_policy/ess": 0.97}
BROKEN_EXPERTS = {"agreement/k3": 2.4, "agreement/clipped_share": 0.7, "off_policy/ess": 0.07}
TWO_FORMATS = {"agreement/k3": 0.05, "agreement/clipped_share": 0.16, "off_policy/ess": 0.9}
DECOUPLED = {"algorithm": {"rollout_correction": {"bypass_mode": False}}}


def agreement_with(**changes: object) -> PolicyAgreement:
    return PolicyAgreement(LearnerSettings.model_validate({"model_path": Path("model"), **changes}))


def test_fresh_tokens_of_another_policy_end_the_learner() -> None:
    sentence = (
        r"different policies: on tokens of the newest version their k3 divergence is 2\.4 nats per token, above "
        r"max_mismatch \(0\.2\), and the effective sample size is 0\.07, below 0\.5"
    )
    with pytest.raises(LearnerError, match=sentence):
        agreement_with().check({**FRESH, **BROKEN_EXPERTS})
    with pytest.raises(LearnerError, match="k3 divergence is nan"):
        agreement_with().check({**FRESH, **ROUNDING, "agreement/k3": float("nan")})


def test_two_policies_are_named_at_once_and_end_the_learner_after_three_steps() -> None:
    problems = find_problems([STEP | {**FRESH, **TWO_FORMATS}], (), max_steps=20)
    sentence = describe("policies_apart", **problems["policies_apart"])
    assert "of the tokens that the newest version sampled 16.0% have a clipped ratio" in sentence
    assert "policies_apart" not in find_problems([STEP | {**FRESH, **ROUNDING}], (), max_steps=20)
    agreement = agreement_with()
    for metrics in (TWO_FORMATS, TWO_FORMATS, ROUNDING, TWO_FORMATS, TWO_FORMATS):
        agreement.check({**FRESH, **metrics})
    agreement.check({"staleness/max": 1.0})  # no token to compare
    with pytest.raises(LearnerError, match=r"one number format.* in 3 steps in a row"):
        agreement.check({**FRESH, **TWO_FORMATS})


@pytest.mark.parametrize(
    ("metrics", "changes"),
    [
        ({**FRESH, **ROUNDING}, {}),
        ({"staleness/max": 2.0, "off_policy/ess": 0.1}, {}),
        ({**FRESH, **BROKEN_EXPERTS, "truncated_share": 0.4}, {}),
        ({**FRESH, **BROKEN_EXPERTS, "agreement/tokens": 20.0}, {}),
        ({**FRESH, **BROKEN_EXPERTS}, {"max_mismatch": None}),
        ({**FRESH, **BROKEN_EXPERTS}, {"engine": {"check_model": False}}),
        ({**FRESH, **ROUNDING, "off_policy/ess": 0.1}, {"actor": {"ppo_epochs": 3}}),
        ({**FRESH, **ROUNDING, "off_policy/ess": 0.1, "staleness/max": 1.0}, {}),
        ({**FRESH, "agreement/k3": 0.05, "off_policy/ess": 0.9}, DECOUPLED),
    ],
    ids=["rounding", "no fresh token", "truncated", "few", "no bound", "unchecked", "later epochs", "stale", "own"],
)
def test_other_steps_go_on(metrics: dict[str, float], changes: dict[str, object]) -> None:
    agreement = agreement_with(**changes)
    for _ in range(5):
        agreement.check(metrics)


def test_rounding_is_no_finding_and_a_second_policy_is_one() -> None:
    """Of 500 tokens 0.5 % clipped are never named in 20,000 steps; 8 % are named in more than 99 of 100."""
    rng, count = np.random.default_rng(0), 500
    named = {share: rng.binomial(count, share, 20_000) / count for share in (0.005, 0.08)}
    shares = {share: np.mean([exceeds(value, count, 0.02) for value in values]) for share, values in named.items()}
    assert shares[0.005] == 0
    assert shares[0.08] > 0.99


def test_calls_of_one_version_alone_are_compared() -> None:
    """A call that a swap cut in two has tokens behind others of an older version in the engine's cache."""
    calls = np.array([CONTEXT, 0, 0, CONTEXT, 1, 1, 2, 2])
    versions = np.array([CONTEXT, 4, 4, CONTEXT, 3, 4, 4, 4])
    logprobs = np.full(8, -1.0, np.float32)
    row = TrainSequence("r", 1.0, np.arange(8), calls, logprobs, versions)
    fresh = find_fresh(row, 4)
    assert fresh.tolist() == [0, 1, 1, 0, 0, 0, 1, 1]
    assert not find_fresh(row, None).any()
    current = logprobs + np.array([9, 0.1, 0.3, 9, 9, 9, -0.1, -0.3], np.float32)
    metrics = compare_fresh(agreement_with().settings, [current], [logprobs], [fresh])
    differences = np.array([0.1, 0.3, -0.1, -0.3])
    assert metrics["agreement/k3"] == pytest.approx(np.mean(np.expm1(differences) - differences), rel=1e-4)
    assert (metrics["agreement/tokens"], metrics["agreement/clipped_share"]) == (4, 0.5)
    decoupled = compare_fresh(agreement_with(**DECOUPLED).settings, [current], [logprobs], [fresh])
    assert decoupled.keys() == {"agreement/tokens", "agreement/k3"}, "the ratio is the learner's own"
