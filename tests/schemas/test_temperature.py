"""A temperature that differs is found far below the errors of rounding, and those alone are not."""

import numpy as np
import pytest

from lightningbus.schemas.weights.temperature import describe_temperature_error, find_temperature_error

NUM_TOKENS, SPREAD, ROUNDING = 2000, 3.0, 0.06
"""A probe's tokens; the deviation of their log-probabilities and of errors in 16 bits, in nats, as of SmolLM2-135M."""


def find(seed: int, scale: float, alike: float = 0.0) -> float:
    """Draw a probe of 300 kinds of tokens whose errors have a part in common, and measure it."""
    random = np.random.default_rng(seed)
    token_ids = random.integers(0, 300, NUM_TOKENS).astype(np.uint32)
    logprobs = -np.abs(random.normal(0, SPREAD, NUM_TOKENS))
    common = random.normal(0, 1, 300)[token_ids]
    errors = ROUNDING * (alike**0.5 * common + (1 - alike) ** 0.5 * random.normal(0, 1, NUM_TOKENS))
    return find_temperature_error((scale - 1) * logprobs + errors, logprobs, token_ids)


@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_rounding_alone_is_never_a_temperature(alike: float) -> None:
    """Power: a false alarm with a probability of 1 % would show in 500 probes with one of 0.99."""
    assert not any(find(seed, 1.0, alike) for seed in range(500))


@pytest.mark.parametrize(("scale", "alike"), [(1.02, 0.0), (0.98, 0.0), (1.02, 0.5)])
def test_two_percent_are_found_always(scale: float, alike: float) -> None:
    shares = [find(seed, scale, alike) for seed in range(500)]
    assert all(share == pytest.approx(scale - 1, abs=0.01) for share in shares)
    assert describe_temperature_error(0.02) == "are scaled by 1.02" and describe_temperature_error(0.0) == ""


@pytest.mark.parametrize("num_far", [1, 2])
def test_a_few_tokens_far_from_the_others_prove_nothing(num_far: int) -> None:
    random = np.random.default_rng(0)
    logprobs = np.concatenate([np.full(num_far, -30.0), -np.abs(random.normal(0, 0.01, 700))])
    errors = random.normal(0, 0.01, len(logprobs))
    errors[:num_far] = 0.5
    assert find_temperature_error(errors, logprobs, np.arange(len(logprobs), dtype=np.uint32) // num_far) == 0.0


@pytest.mark.parametrize(("shares", "is_fault"), [(1.6, False), (4.0, True)])
def test_errors_that_are_large_beside_the_spread_scale_log_probabilities_too(shares: float, is_fault: bool) -> None:
    """A right Gemma-4 of random weights shrinks by 1.6 shares of the variance of its errors in bfloat16."""
    random = np.random.default_rng(0)
    logprobs, errors = random.normal(-3, 1.2, 4000), random.normal(0, 0.1, 4000)
    scaled = errors - shares * (errors.var() / logprobs.var()) * logprobs
    share = find_temperature_error(scaled, logprobs, random.integers(0, 300, 4000).astype(np.uint32))
    assert (share != 0) == is_fault


def test_equal_log_probabilities_have_no_slope() -> None:
    assert find_temperature_error(np.ones(4), np.zeros(4), np.arange(4, dtype=np.uint32)) == 0.0
