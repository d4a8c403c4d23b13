"""The worked example of docs/lightningrl.md, from calls to the loss: every number was worked out by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.batching.batch import Batch, BatchMaker
from learner.engine import cpu_platform
from learner.settings.learner import LearnerSettings
from learner.training.correction import corrected
from learner.training.loss import policy_loss
from learner.training.tensors import Engine, segments_of, to_engine
from learner.training.token_weights import row_weights
from tests.factories import group, model_call, rollout

A = 0.5 / math.sqrt(0.5)
SETTINGS = LearnerSettings(model_path=Path("model"))


def example(settings: LearnerSettings = SETTINGS) -> Batch:
    """Two rollouts of one task; `model_call` samples every token with probability 1/e."""
    won = [model_call(0, [5, 6, 7], [8, 9]), model_call(1, [5, 6, 7, 8, 9, 4], [10, 11, 12])]
    lost = [model_call(0, [5, 6, 7], [13])]
    groups = group("a", rollout("a", 0, 1.0, calls=won), rollout("a", 1, 0.0, calls=lost))
    return BatchMaker(settings).make([groups], 0)


def test_rows() -> None:
    one, two = example().rows
    assert one.ids.tolist() == [5, 6, 7, 8, 9, 4, 10, 11, 12] and two.ids.tolist() == [5, 6, 7, 13]
    assert one.calls.tolist() == [-1, -1, -1, 0, 0, -1, 1, 1, 1] and two.calls.tolist() == [-1, -1, -1, 0]
    assert one.logprobs.tolist() == [0, 0, 0, -1, -1, 0, -1, -1, -1]


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ({"method": "identical"}, [A, A, -A]),
        ({"method": "discounted", "gamma": 0.5}, [A / 2, A, -A]),
        ({"method": "last"}, [0, A, -A]),
        ({"method": "anchor"}, [2 * A, A, -2 * A]),
    ],
    ids=["identical", "discounted", "last", "anchor"],
)
def test_advantages(credit: dict[str, Any], expected: list[float]) -> None:
    found = example(LearnerSettings.model_validate({"model_path": "model", "credit": credit})).advantages
    assert list(found) == [("a.0", 0), ("a.0", 1), ("a.1", 0)]
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-5)


def test_weights_loss_and_gradient() -> None:
    cpu_platform.select()
    from verl.utils.tensordict_utils import assign_non_tensor

    batch = example()
    weights = row_weights(batch.rows, "seq-mean-token-mean")
    assert weights == pytest.approx([0.1, 0.5])
    now = [np.where(row.trained, -1.0, 0.0).astype(np.float32) for row in batch.rows]
    now[0][6] = -0.6  # token 10
    correction = corrected(now, [row.logprobs for row in batch.rows], segments_of(batch.rows), SETTINGS)
    moved = math.exp(0.4)
    assert correction.metrics["ess"] == pytest.approx((5 + moved) ** 2 / (6 * (5 + moved**2)), rel=1e-6)
    data = to_engine(
        batch.rows,
        {
            "segments": correction.segments,
            "old_log_probs": correction.old_log_probs,
            "importance": correction.importance,
            "advantages": [batch.advantage_of_tokens(row) for row in batch.rows],
            "weights": [np.full(len(row.ids), w, np.float32) for row, w in zip(batch.rows, weights, strict=True)],
        },
        Engine(64),
    )
    assign_non_tensor(data, dp_size=1)
    # The engine says each token's log-probability at the place before it.
    said = torch.cat([torch.from_numpy(np.roll(part, -1)) for part in now]).requires_grad_()
    output = torch.nested.nested_tensor_from_jagged(said, data["input_ids"].offsets())
    loss, metrics = policy_loss(SETTINGS, {"log_probs": output}, data)
    assert loss.item() == pytest.approx(0.1 * (-4 * A - 1.28 * A) + 0.5 * A, rel=1e-5)
    assert loss.item() == pytest.approx(-0.019799, rel=1e-4)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 6)
    (gradient,) = torch.autograd.grad(loss, said)
    expected = [0, 0, -0.1 * A, -0.1 * A, 0, 0, -0.1 * A, -0.1 * A, 0, 0, 0, 0.5 * A, 0]
    np.testing.assert_allclose(gradient.numpy(), expected, atol=1e-6)
