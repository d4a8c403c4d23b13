"""Engine and learner agree after each swap of a whole run."""

from pathlib import Path

import pytest

from lightningbus.learner.model_check.agreement import MAX_DIFFERENCE
from tests.families.three_steps import STEPS, train

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_a_family_is_trained_to_its_third_step(tmp_path: Path, family: str) -> None:
    differences = train(family, tmp_path)
    assert len(differences) == STEPS and max(differences) <= MAX_DIFFERENCE
