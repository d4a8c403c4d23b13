"""Engine and learner agree after each swap of a whole run."""

import pytest

from lightningbus.learner.model_check.agreement import MAX_DIFFERENCE
from tests.families.three_steps import STEPS, train_families

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_families_are_trained_to_their_third_step() -> None:
    for family, result in train_families(["llama", "gemma2", "qwen3_moe"]):
        assert len(result["differences"]) == STEPS and max(result["differences"]) <= MAX_DIFFERENCE, (family, result)
