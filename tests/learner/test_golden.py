"""The worked example of docs/lightningrl.md, from calls to the loss: every number was worked out by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.engine import cpu_platform
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.correction import apply_rollout_correction
from lightningbus.learner.training.distributed import ProcessGroup
from lightningbus.learner.training.effective_sample import EffectiveSample, effective_sample_size
from lightningbus.learner.training.loss import policy_loss
from lightningbus.learner.training.tensors import ForwardConfig, Segments, TokenInputs
from lightningbus.learner.training.token_weights import loss_weights
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for

A = 0.5 / math.sqrt(0.5)
SETTINGS = LearnerSettings(model_path=Path("model"))


def example(settings: LearnerSettings = SETTINGS) -> Batch:
    """Two rollouts of one task; `model_call` samples every token with probability 1/e."""
    won = [model_call(0, [5, 6, 7], [8, 9]), model_call(1, [5, 6, 7, 8, 9, 4], [10, 11, 12])]
    lost = [model_call(0, [5, 6, 7], [13])]
    groups = group("a", rollout("a", 0, 1.0, calls=won), rollout("a", 1, 0.0, calls=lost))
    return builder_for(settings).build([groups], 0)


def test_rows() -> None:
    item, two = example().sequences
    assert item.token_ids.tolist() == [5, 6, 7, 8, 9, 4, 10, 11, 12] and two.token_ids.tolist() == [5, 6, 7, 13]
    assert item.call_index.tolist() == [-1, -1, -1, 0, 0, -1, 1, 1, 1] and two.call_index.tolist() == [-1, -1, -1, 0]
    assert item.logprobs.tolist() == [0, 0, 0, -1, -1, 0, -1, -1, -1]


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ({"method": "identical"}, [A, A, -A]),
        ({"method": "discounted", "gamma": 0.5}, [A / 2, A, -A]),
        ({"method": "last_call"}, [0, A, -A]),
        ({"method": "gigpo"}, [2 * A, A, -2 * A]),
    ],
    ids=["identical", "discounted", "last_call", "gigpo"],
)
def test_advantages(credit: dict[str, Any], expected: list[float]) -> None:
    advantages = example(LearnerSettings.model_validate({"model_path": "model", "credit": credit})).advantages
    assert list(advantages) == [("a.0", 0), ("a.0", 1), ("a.1", 0)]
    np.testing.assert_allclose(list(advantages.values()), expected, rtol=1e-5)


def test_the_divergence_of_nearly_equal_policies_is_not_below_zero() -> None:
    cpu_platform.select_platform()
    batch = example()
    sampled = [row.logprobs for row in batch.sequences]
    now = [values + np.float32(1e-4) for values in sampled]
    metrics = apply_rollout_correction(now, sampled, Segments(batch.sequences), SETTINGS).metrics
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(1e-8 / 2, rel=1e-2)


def test_weights_loss_and_gradient() -> None:
    cpu_platform.select_platform()
    from verl.utils.tensordict_utils import assign_non_tensor

    batch = example()
    weights = loss_weights(batch.sequences, "seq-mean-token-mean")
    assert weights == pytest.approx([0.1, 0.5])
    now = [np.where(row.trained, -1.0, 0.0).astype(np.float32) for row in batch.sequences]
    now[0][6] = -0.6  # token 10
    correction = apply_rollout_correction(
        now, [row.logprobs for row in batch.sequences], Segments(batch.sequences), SETTINGS
    )
    moved = math.exp(0.4)
    expected_ess = pytest.approx((5 + moved) ** 2 / (6 * (5 + moved**2)), rel=1e-6)
    sampled, trained = [row.logprobs for row in batch.sequences], [row.trained for row in batch.sequences]
    assert effective_sample_size(now, sampled, trained) == expected_ess
    data = TokenInputs(
        batch.sequences,
        {
            "segments": correction.segment_ids,
            "old_log_probs": correction.old_log_probs,
            "importance": correction.importance,
            "advantages": [batch.token_advantages(row) for row in batch.sequences],
            "weights": [
                np.full(len(row.token_ids), w, np.float32) for row, w in zip(batch.sequences, weights, strict=True)
            ],
        },
    ).to_tensordict(ForwardConfig(64))
    assign_non_tensor(data, dp_size=1)
    # The engine says each token's log-probability at the place before it.
    text = torch.cat([torch.from_numpy(np.roll(part, -1)) for part in now]).requires_grad_()
    output = torch.nested.nested_tensor_from_jagged(text, data["input_ids"].offsets())
    sample = EffectiveSample(ProcessGroup("cpu"))
    loss, metrics = policy_loss(SETTINGS, {"log_probs": output}, data, effective_sample=sample)
    assert sample.share == expected_ess
    assert loss.item() == pytest.approx(0.1 * (-4 * A - 1.28 * A) + 0.5 * A, rel=1e-5)
    assert loss.item() == pytest.approx(-0.019799, rel=1e-4)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 6)
    (gradient,) = torch.autograd.grad(loss, text)
    expected = [0, 0, -0.1 * A, -0.1 * A, 0, 0, -0.1 * A, -0.1 * A, 0, 0, 0, 0.5 * A, 0]
    np.testing.assert_allclose(gradient.numpy(), expected, atol=1e-6)
