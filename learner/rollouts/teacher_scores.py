"""Scores of tokens by a teacher: of the tokens themselves, and of the likeliest ones in their places. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScores:
    """Log-probabilities in nats, at temperature 1, of ``n`` tokens and of ``k`` in the place of each."""

    logprobs: NDArray[np.float32]
    """``float32[n]``: of each token; NaN: it has none."""
    top_ids: NDArray[np.int32]
    """``int32[n, k]``: the tokens that the teacher holds likeliest in its place."""
    top_logprobs: NDArray[np.float32]
    """``float32[n, k]``: theirs; -inf: there is no such token."""

    @classmethod
    def empty(cls, num_tokens: int, top_k: int = 0) -> Self:
        """Return scores of tokens that have none."""
        shape = num_tokens, top_k
        return cls(
            np.full(num_tokens, np.nan, np.float32), np.zeros(shape, np.int32), np.full(shape, -np.inf, np.float32)
        )

    @classmethod
    def join(cls, parts: Sequence["TeacherScores"], top_k: int = 0) -> Self:
        """Join the scores of token after token, to the largest ``k`` among them and ``top_k``."""
        top_k = max([top_k, *(part.top_k for part in parts)])
        wide: list[TeacherScores] = [cls.empty(0, top_k), *(part.widen(top_k) for part in parts)]
        return cls(
            np.concatenate([part.logprobs for part in wide]),
            np.concatenate([part.top_ids for part in wide]),
            np.concatenate([part.top_logprobs for part in wide]),
        )

    def __len__(self) -> int:
        return len(self.logprobs)

    def __getitem__(self, part: slice | NDArray[Any]) -> Self:
        """Return the scores of some of the tokens."""
        return replace(
            self, logprobs=self.logprobs[part], top_ids=self.top_ids[part], top_logprobs=self.top_logprobs[part]
        )

    @property
    def top_k(self) -> int:
        """Likeliest tokens in each place."""
        return int(self.top_ids.shape[1])

    @property
    def is_scored(self) -> NDArray[np.bool_]:
        """``bool[n]``: the tokens that have a score."""
        return np.isfinite(self.logprobs)

    def widen(self, top_k: int) -> Self:
        """Return a copy with ``top_k`` entries in each place, which must be no fewer than now."""
        more = ((0, 0), (0, top_k - self.top_k))
        return replace(
            self,
            top_ids=np.pad(self.top_ids, more),
            top_logprobs=np.pad(self.top_logprobs, more, constant_values=-np.inf),
        )

    def drop_beyond(self, vocabulary_size: int) -> Self:
        """Return a copy without likeliest tokens that a student of so many tokens lacks."""
        is_known = self.top_ids < vocabulary_size
        return replace(
            self,
            top_ids=np.where(is_known, self.top_ids, 0),
            top_logprobs=np.where(is_known, self.top_logprobs, np.float32(-np.inf)),
        )
