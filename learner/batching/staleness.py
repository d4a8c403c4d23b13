"""Staleness of tokens in weight versions, and the tokens beyond the bound. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence


def token_staleness(sequences: Iterable[TrainSequence], version: int) -> NDArray[np.int64]:
    """Return ``int64[T]`` over all trained tokens, in order: the version being trained minus the one that sampled."""
    versions = [sequence.weight_versions[sequence.trained] for sequence in sequences]
    return version - np.concatenate(versions) if versions else np.zeros(0, dtype=np.int64)


def max_staleness_of(sequences: Sequence[TrainSequence], version: int) -> int:
    """Return the staleness of the oldest trained token; 0 if there is none."""
    return int(token_staleness(sequences, version).max(initial=0))


def mask_stale_tokens(sequences: Iterable[TrainSequence], version: int, max_staleness: int) -> list[TrainSequence]:
    """Turn every token beyond the bound into context; drop sequences without a trained token."""
    masked = []
    for sequence in sequences:
        call_index = np.where(version - sequence.weight_versions > max_staleness, CONTEXT, sequence.call_index)
        masked.append(replace(sequence, call_index=call_index))
    return [sequence for sequence in masked if sequence.num_tokens]
