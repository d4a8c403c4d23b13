"""Evidence against one engine, token by token. Pure.

Each bet is a factor whose mean is at most 1 while the engine is sound. Its product restarts at 1 whenever it falls
below: the CUSUM of Shin, Ramdas and Rinaldo, "E-detectors" (arXiv:2203.03532, section 2.3). The mean over bets is an
e-detector too. So a sound engine raises on average at most one alarm in ``exp(threshold)`` tokens.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DIFFERING_SHARES = np.array([0.05, 0.1, 0.2, 0.4, 0.8])
"""Alternatives: this share of an engine's tokens differs."""
TILTS = np.array([-0.9, -0.5, -0.2, 0.2, 0.5, 0.9])
"""Alternatives: the density of the sampled ranks is ``1 + tilt * (2 u - 1)``."""


class Cusum:
    """A mixture of restarting bets; see the module."""

    def __init__(self, num_bets: int) -> None:
        self._log_sums = np.zeros(num_bets)
        self._onsets = np.zeros(num_bets, np.int64)
        self._num_tokens = np.zeros(num_bets, np.int64)

    def add(self, log_bets: Floats, version: int) -> None:
        """Add ``log_bets``, ``float64[T, K]``, of tokens of one version in order.

        After each token ``s = max(s, 0) + bet``. So at the end ``s`` is the sum of all bets less its lowest value on
        the way, where a sum that was positive before counts as that much below 0 at the start.
        """
        if not len(log_bets):
            return
        sums = log_bets.cumsum(0)
        lows = np.vstack([-np.maximum(self._log_sums, 0.0), sums[:-1]])
        restarts = len(lows) - 1 - lows[::-1].argmin(0)  # the last one of equal ones
        is_going_on = (restarts == 0) & (self._log_sums > 0)
        self._onsets = np.where(is_going_on, self._onsets, version)
        self._num_tokens = np.where(is_going_on, self._num_tokens, 0) + len(log_bets) - restarts
        self._log_sums = sums[-1] - lows.min(0)

    @property
    def log_evidence(self) -> float:
        """Natural log of the mean over bets."""
        peak = float(self._log_sums.max())
        return peak + math.log(float(np.exp(self._log_sums - peak).mean()))

    @property
    def onset(self) -> tuple[int, int]:
        """The version at which the strongest bet began to grow, and tokens since."""
        best = int(self._log_sums.argmax())
        return int(self._onsets[best]), int(self._num_tokens[best])


@dataclass(frozen=True, slots=True)
class AuditedTokens:
    """Audit results of ``T`` tokens of one engine and version."""

    differences: Floats
    """``float64[T]``: recorded less recomputed log-probability, in nats."""
    ranks: Floats
    """``float64[S]``, S ≤ T: of each token that was drawn at random, the probability of all tokens more likely than it
    plus a uniform share of its own: uniform on (0, 1) if it was drawn from the recomputed distribution."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The present evidence against an engine."""

    log_evidence: float
    onset_version: int
    num_tokens: int
    reason: str


class Evidence:
    """Evidence against one engine since it started."""

    def __init__(self, tolerance: float, differing_share: float) -> None:
        """See `AuditorSettings`."""
        self._tolerance, self._share = tolerance, differing_share
        shares = DIFFERING_SHARES[differing_share < DIFFERING_SHARES]
        self._if_differing = np.log(shares / differing_share)
        self._if_equal = np.log((1 - shares) / (1 - differing_share))
        self._reported, self._sampled = Cusum(len(shares)), Cusum(len(TILTS))

    def add(self, tokens: AuditedTokens, version: int) -> None:
        """Take tokens of one version, in the order they were sampled."""
        is_differing = ~(np.abs(tokens.differences) <= self._tolerance)  # NaN differs
        self._reported.add(np.where(is_differing[:, None], self._if_differing, self._if_equal), version)
        self._sampled.add(np.log1p(TILTS * (2 * tokens.ranks[:, None] - 1)), version)

    def find(self) -> Finding:
        """Return the stronger of the two tests: of reported log-probabilities, and of sampled tokens."""
        reasons = (
            (self._reported, f"recorded log-probabilities differ by more than {self._tolerance:g} nats"),
            (self._sampled, "tokens are not drawn from the distribution that their log-probabilities say"),
        )
        test, reason = max(reasons, key=lambda pair: pair[0].log_evidence)
        return Finding(test.log_evidence, *test.onset, reason)
