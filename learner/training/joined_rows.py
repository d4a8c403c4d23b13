"""Rows with the same prompt, joined: their common beginning is computed once.

Rollouts of a group have the same prompt. A joined row holds the first of them whole, and of each other one what comes
after the common beginning, at its own positions. `packed_attention` lets that see the beginning in the first row. Where
tokens see each other by attention alone, this computes the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.trainer import Floats
from lightningbus.learner.training.tensors import TokenInputs
from lightningbus.learner.transitions.sequences import TrainSequence

MIN_SHARED = 8
"""Tokens of a beginning for which rows are joined."""
POSITIONS = "position_ids"
"""Field of a token's position, where it is not that in its row."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a row's tokens in a joined row, but for those that it shares with the first."""

    row: int
    start: int
    shared: int


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Joined rows, and the place of each row in them."""

    inputs: TokenInputs
    places: Sequence[Place]
    lengths: Sequence[int]
    """Tokens of each row."""

    def split(self, values: Sequence[Floats]) -> list[Floats]:
        """Return each row's part of values per token, 0 for tokens up to its first own one."""
        parts = []
        for place, length in zip(self.places, self.lengths, strict=True):
            part = np.zeros(length, np.float32)
            end = place.start + length - place.shared
            part[place.shared :] = values[place.row][place.start : end]
            if place.shared:
                part[place.shared] = 0.0  # predicted at the end of another row
            parts.append(part)
        return parts


def join_rows(inputs: TokenInputs, max_tokens: int) -> JoinedRows:
    """Join rows with the same tokens before the first trained one, to at most ``max_tokens``.

    Each row keeps the last of these tokens, at which the first trained one is predicted.
    """
    members: list[list[int]] = []
    sizes: list[int] = []
    open_rows: dict[tuple[float, bytes], int] = {}
    places = []
    for index, sequence in enumerate(inputs.sequences):
        length, shared = len(sequence.token_ids), max(0, int(np.argmax(sequence.trained)) - 1)
        key = sequence.temperature, sequence.token_ids[: shared + 1].tobytes()
        row = open_rows.get(key) if shared >= MIN_SHARED else None
        if row is None or sizes[row] + length - shared > max_tokens:
            row, shared = len(members), 0
            members.append([])
            sizes.append(0)
            open_rows[key] = row
        places.append(Place(row, sizes[row], shared))
        members[row].append(index)
        sizes[row] += length - shared
    fields = {name: _join(arrays, members, places) for name, arrays in inputs.fields.items()}
    fields[POSITIONS] = _join([np.arange(len(row.token_ids)) for row in inputs.sequences], members, places)
    rows = [_join_sequences(inputs.sequences, indices, places) for indices in members]
    lengths = [len(sequence.token_ids) for sequence in inputs.sequences]
    return JoinedRows(TokenInputs(rows, fields), places, lengths)


def _join(
    arrays: Sequence[NDArray[np.generic]], members: Sequence[Sequence[int]], places: Sequence[Place]
) -> list[NDArray[np.generic]]:
    return [np.concatenate([arrays[index][places[index].shared :] for index in indices]) for indices in members]


def _join_sequences(
    sequences: Sequence[TrainSequence], indices: Sequence[int], places: Sequence[Place]
) -> TrainSequence:
    first = sequences[indices[0]]
    if len(indices) == 1:
        return first
    names = ("token_ids", "call_index", "logprobs", "weight_versions")
    joined: dict[str, Any] = {
        name: _join([getattr(row, name) for row in sequences], [indices], places)[0] for name in names
    }
    return replace(first, **joined, teacher_scores=None)  # which are fields by then
