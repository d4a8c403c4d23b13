"""The sequential test: sound engines raise no alarm, others soon do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.auditor.evidence import AuditedTokens, Cusum, Evidence

THRESHOLD = -np.log(1e-9)
MILLION = 1_000_000


def sound(random: np.random.Generator, count: int) -> AuditedTokens:
    return AuditedTokens(random.normal(0, 1e-4, count), random.random(count))


@pytest.mark.parametrize("seed", range(5))
def test_a_million_sound_tokens_raise_no_alarm(seed: int) -> None:
    random, evidence = np.random.default_rng(seed), Evidence(0.01, 0.02)
    highest = 0.0
    for version in range(MILLION // 100):
        evidence.add(sound(random, 100), version)
        highest = max(highest, evidence.find().log_evidence)
    assert highest < THRESHOLD


@pytest.mark.parametrize("seed", range(5))
def test_rounding_that_is_allowed_for_raises_no_alarm(seed: int) -> None:
    random, evidence = np.random.default_rng(seed), Evidence(0.25, 0.02)
    for version in range(MILLION // 1000):
        differences = np.where(random.random(1000) < 0.02, 1.0, 0.0)
        evidence.add(AuditedTokens(differences, random.random(1000)), version)
        assert evidence.find().log_evidence < THRESHOLD


@pytest.mark.parametrize(("share", "num_tokens"), [(1.0, 20), (0.5, 50), (0.1, 1000)])
def test_a_fault_is_found_within_some_tokens(share: float, num_tokens: int) -> None:
    random, evidence = np.random.default_rng(7), Evidence(0.01, 0.02)
    for version in range(100):
        evidence.add(sound(random, 100), version)
    differences = np.where(random.random(num_tokens) < share, 0.05, 0.0)
    evidence.add(AuditedTokens(differences, random.random(num_tokens)), 100)
    finding = evidence.find()
    assert finding.log_evidence > THRESHOLD
    assert finding.onset_version == 100, "from where on tokens are quarantined"
    assert finding.num_tokens <= num_tokens + 5
    assert "log-probabilities" in finding.reason


def test_tokens_that_another_temperature_drew_are_found() -> None:
    random, evidence = np.random.default_rng(3), Evidence(0.01, 0.02)
    ranks = random.random(600) ** 0.6  # less likely tokens than claimed
    evidence.add(AuditedTokens(np.zeros(600), ranks), 4)
    assert evidence.find().log_evidence > THRESHOLD
    assert "not drawn" in evidence.find().reason


def test_what_is_no_number_differs() -> None:
    evidence = Evidence(0.01, 0.02)
    evidence.add(AuditedTokens(np.array([np.nan, np.inf, -np.inf] * 10), np.array([])), 1)
    assert evidence.find().log_evidence > THRESHOLD


@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=6), max_size=8))
def test_bets_in_one_call_or_one_by_one_are_the_same(chunks: list[list[int]]) -> None:
    whole, single = Cusum(1), Cusum(1)
    for version, chunk in enumerate(chunks):
        bets = np.array(chunk, float)[:, None]
        whole.add(bets, version)
        for bet in bets:
            single.add(bet[None], version)
    assert whole.log_evidence == pytest.approx(single.log_evidence)
    assert whole.onset == single.onset
