"""The recomputed distribution is the one vLLM samples from."""

import numpy as np
import pytest
import torch

from lightningbus.auditor.distribution import log_probs, sampled_ranks
from lightningbus.auditor.samples import Sampling

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 0.0, 3.0, 1.0]])


def test_without_settings_it_is_the_softmax() -> None:
    assert torch.equal(log_probs(LOGITS, Sampling()), torch.log_softmax(LOGITS, -1))
    assert torch.equal(log_probs(LOGITS, Sampling(temperature=0.0)), torch.log_softmax(LOGITS, -1))


def test_temperature_divides_the_logits() -> None:
    assert torch.allclose(log_probs(LOGITS, Sampling(temperature=0.5)), torch.log_softmax(LOGITS * 2, -1))


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=1), [[0], [2]]),
        (Sampling(top_k=3), [[0, 1, 2], [0, 1, 2, 3]]),
        (Sampling(top_p=0.7), [[0, 1], [2]]),
        (Sampling(min_p=0.3), [[0, 1], [2]]),
        (Sampling(top_p=1e-9), [[0], [2]]),
        (Sampling(top_k=100), [[0, 1, 2, 3], [0, 1, 2, 3]]),
    ],
)
def test_what_is_cut_off_has_no_probability(sampling: Sampling, kept: list[list[int]]) -> None:
    result = log_probs(LOGITS, sampling)
    assert [row.isfinite().nonzero()[:, 0].tolist() for row in result] == kept
    assert torch.allclose(result.exp().sum(-1), torch.ones(2))


def test_ranks_of_drawn_tokens_are_uniform() -> None:
    generator = torch.Generator().manual_seed(5)
    distribution = torch.log_softmax(torch.randn(1, 50, generator=generator), -1).expand(20_000, -1)
    tokens = torch.multinomial(distribution.exp(), 1, generator=generator)[:, 0]
    ranks = sampled_ranks(distribution, tokens, torch.rand(20_000, generator=generator)).numpy()
    deciles = np.histogram(ranks, 10, (0, 1))[0] / 20_000
    assert np.abs(deciles - 0.1).max() < 0.01
