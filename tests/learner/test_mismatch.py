"""A learner whose engine samples from another policy ends, though every step of it could be made."""

from pathlib import Path

import pytest

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.mismatch import check_mismatch
from lightningbus.learner.settings.learner import LearnerSettings

FRESH = {"staleness/max": 0.0, "truncated_share": 0.0}
BROKEN_EXPERTS = {"rollout_corr/kl": 1.73, "rollout_corr/k3_kl": 2.4, "off_policy/ess": 0.07}


def settings_with(**changes: object) -> LearnerSettings:
    return LearnerSettings.model_validate({"model_path": Path("model"), **changes})


def test_fresh_tokens_of_another_policy_end_the_learner() -> None:
    sentence = (
        r"different policies: on tokens of the newest version their k3 divergence is 2\.4 nats per token, above "
        r"max_mismatch \(0\.2\), and the effective sample size is 0\.07, below 0\.5"
    )
    with pytest.raises(LearnerError, match=sentence):
        check_mismatch(settings_with(), {**FRESH, **BROKEN_EXPERTS})
    with pytest.raises(LearnerError, match="k3 divergence is nan"):
        check_mismatch(settings_with(), {**FRESH, "rollout_corr/k3_kl": float("nan")})


@pytest.mark.parametrize(
    ("metrics", "changes"),
    [
        ({**FRESH, "rollout_corr/k3_kl": 0.004, "off_policy/ess": 0.97}, {}),
        ({**FRESH}, {}),
        ({**BROKEN_EXPERTS, "staleness/max": 2.0}, {}),
        ({**BROKEN_EXPERTS, "staleness/max": 0.0, "truncated_share": 0.4}, {}),
        ({**FRESH, **BROKEN_EXPERTS}, {"max_mismatch": None}),
        ({**FRESH, **BROKEN_EXPERTS}, {"engine": {"check_model": False}}),
        ({**FRESH, "off_policy/ess": 0.1}, {"actor": {"ppo_epochs": 3}}),
    ],
    ids=["rounding", "no pass", "stale", "truncated", "no bound", "unchecked", "later epochs"],
)
def test_other_steps_go_on(metrics: dict[str, float], changes: dict[str, object]) -> None:
    check_mismatch(settings_with(**changes), metrics)
