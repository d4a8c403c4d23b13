"""Rows as verl's engine takes them, and what it gives per token back as arrays.

A *segment* is what one call has in one row: the sequence of every rule and loss that speaks of sequences, so that it
does not matter how calls were put into rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.batching.sequences import NOT_TRAINED, Row

Floats = NDArray[np.float32]
EMPTY = Row("", 1.0, np.zeros(2, np.int64), np.full(2, NOT_TRAINED), np.zeros(2, np.float32), np.full(2, NOT_TRAINED))
"""Two tokens that nothing is learned from: what a rank gets that has fewer rows than another."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Fixed settings of a forward pass."""

    max_tokens: int
    entropy: bool = False


def to_engine(rows: Sequence[Row], fields: Mapping[str, Sequence[NDArray[Any]]], settings: Engine) -> Any:
    """verl's TensorDict of ``rows``, each of the ``fields`` being an array of a row's length for each of them."""
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import DatasetPadMode

    def nested(parts: Sequence[NDArray[Any]]) -> Any:
        return torch.nested.as_nested_tensor(
            [torch.from_numpy(np.ascontiguousarray(part)) for part in parts], layout=torch.jagged
        )

    longest = max(len(row.ids) for row in rows)
    return tu.get_tensordict(
        {
            "input_ids": nested([row.ids for row in rows]),
            "position_ids": nested([np.arange(len(row.ids)) for row in rows]),
            "loss_mask": nested([row.trained.astype(np.float32) for row in rows]),
            "temperature": torch.tensor([row.temperature for row in rows], dtype=torch.float32),
            **{name: nested(parts) for name, parts in fields.items()},
        },
        {
            "use_remove_padding": False,
            "pad_mode": DatasetPadMode.NO_PADDING,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": max(settings.max_tokens, longest),
            "global_batch_size": len(rows),
            "calculate_entropy": settings.entropy,
        },
    )


def from_engine(output: Any, rows: Sequence[Row]) -> list[Floats]:
    """Per row ``float32[N]`` of a per-token output: a token is predicted at the place before it; 0 for the first."""
    outputs = []
    for part, row in zip(output.unbind(), rows, strict=True):
        values = np.zeros(len(row.ids), dtype=np.float32)
        values[1:] = part[:-1].detach().float().cpu().numpy()
        outputs.append(values)
    return outputs


def segments_of(rows: Sequence[Row]) -> list[NDArray[np.int64]]:
    """Per row ``int64[N]``: a number for each call in each row, counted over all rows; `NOT_TRAINED` for context."""
    segments, first = [], 0
    for row in rows:
        numbers = np.full(len(row.ids), NOT_TRAINED, dtype=np.int64)
        names, inverse = np.unique(row.calls[row.trained], return_inverse=True)
        numbers[row.trained] = first + inverse
        segments.append(numbers)
        first += len(names)
    return segments


class Segments:
    """Values of trained tokens as a matrix of one segment a line, and back.

    A call comes after those it extends, so numbers never fall from one token to the next and nothing is put in order.
    """

    def __init__(self, numbers: Sequence[NDArray[np.int64]]) -> None:
        """``numbers`` as of `segments_of`."""
        self._trained = [np.not_equal(number, NOT_TRAINED) for number in numbers]
        flat = np.concatenate([number[trained] for number, trained in zip(numbers, self._trained, strict=True)])
        lengths = np.unique(flat, return_counts=True)[1]
        self.mask = np.arange(lengths.max(initial=0))[None] < lengths[:, None]
        """``bool[S, T]``"""

    def matrix(self, parts: Sequence[NDArray[Any]]) -> Any:
        """``float32[S, T]`` tensor, 0 where there is no token, of an array for each row."""
        import torch

        matrix = np.zeros(self.mask.shape, dtype=np.float32)
        matrix[self.mask] = np.concatenate([part[trained] for part, trained in zip(parts, self._trained, strict=True)])
        return torch.from_numpy(matrix)

    def rows(self, matrix: Any) -> list[Floats]:
        """The inverse of `matrix`: an array for each row, 0 for context."""
        flat = np.asarray(matrix, dtype=np.float32)[self.mask]
        parts, at = [], 0
        for trained in self._trained:
            values = np.zeros(len(trained), dtype=np.float32)
            count = int(trained.sum())
            values[trained] = flat[at : at + count]
            parts.append(values)
            at += count
        return parts
