"""Sequences and values per token as verl takes them, and its outputs back as arrays.

A *segment* is the trained tokens of one call in one sequence. Every rule and loss that speaks of sequences means
segments, so it does not matter how calls were put into sequences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.trainer import Floats
from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence

PADDING = TrainSequence(
    "", 1.0, np.zeros(2, np.int64), np.full(2, CONTEXT), np.zeros(2, np.float32), np.full(2, CONTEXT)
)
"""Two tokens of context, for a rank that has fewer sequences than another."""


@dataclass(frozen=True, slots=True)
class ForwardConfig:
    """Fixed settings of a forward pass."""

    max_tokens: int
    """Largest number of tokens in a micro-batch, padding included."""
    entropy: bool = False
    is_packed: bool = True
    """Whether rows are packed one after another; else they stand side by side, padded to the longest."""
    shares_prefixes: bool = False
    """Whether rows of the same prompt are joined, see `joined_rows`."""

    def rows_per_micro_batch(self, sequences: Sequence[TrainSequence]) -> int:
        """Return the rows of a micro-batch: 1 when packed, since verl itself packs rows up to the token limit."""
        longest = max((len(sequence.token_ids) for sequence in sequences), default=1)
        return 1 if self.is_packed else max(1, self.max_tokens // longest)


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """``S`` sequences, and for each field ``S`` arrays with one value, or one row of values, per token."""

    sequences: Sequence[TrainSequence]
    fields: Mapping[str, Sequence[NDArray[Any]]]

    def select(self, indices: Sequence[int]) -> Self:
        """Return a copy with only the sequences at these indices."""
        fields = {name: [arrays[index] for index in indices] for name, arrays in self.fields.items()}
        return type(self)([self.sequences[index] for index in indices], fields)

    def pad(self, count: int) -> Self:
        """Return a copy with ``count`` times `PADDING` at the end."""
        length = len(PADDING.token_ids)
        blank = {
            name: np.zeros((length, *arrays[0].shape[1:]), arrays[0].dtype) for name, arrays in self.fields.items()
        }
        meanings = {"segments": PADDING.call_index, "position_ids": np.arange(len(PADDING.token_ids))}
        blank |= {name: values for name, values in meanings.items() if name in blank}
        fields = {name: [*arrays, *[blank[name]] * count] for name, arrays in self.fields.items()}
        return type(self)([*self.sequences, *[PADDING] * count], fields)

    def to_tensordict(self, config: ForwardConfig, rows_per_micro_batch: int = 1) -> Any:
        """Convert to verl's TensorDict: jagged tensors of the token ids, positions and fields.

        A field of positions replaces those in the rows.

        Unless packed, the number of sequences must be a multiple of ``rows_per_micro_batch``.
        """
        import torch
        from verl.utils import tensordict_utils as tu
        from verl.utils.dataset.dataset_utils import DatasetPadMode

        def nest(arrays: Sequence[NDArray[Any]]) -> Any:
            tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
            return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

        sequences = self.sequences
        tensors = {
            "input_ids": nest([sequence.token_ids for sequence in sequences]),
            "position_ids": nest([np.arange(len(sequence.token_ids)) for sequence in sequences]),
            "loss_mask": nest([sequence.trained.astype(np.float32) for sequence in sequences]),
            **{name: nest(arrays) for name, arrays in self.fields.items()},
        }
        others: dict[str, Any] = {
            "use_remove_padding": config.is_packed,
            "pad_mode": DatasetPadMode.NO_PADDING,
            "use_dynamic_bsz": config.is_packed,
            "max_token_len_per_gpu": config.max_tokens,
            "micro_batch_size_per_gpu": rows_per_micro_batch,
            "global_batch_size": len(sequences),
            "calculate_entropy": config.entropy,
        }
        temperatures = [sequence.temperature for sequence in sequences]
        if set(temperatures) == {1.0}:
            others["temperature"] = 1.0  # a number, which spares verl a copy of all logits
        else:
            tensors["temperature"] = torch.tensor(temperatures, dtype=torch.float32)
        return tu.get_tensordict(tensors, others)


def from_output(output: Any, sequences: Sequence[TrainSequence]) -> list[Floats]:
    """Convert a per-token output to one ``float32[N]`` per sequence, 0 for the first token.

    The model predicts a token at the position before it.
    """
    outputs = []
    for tensor, sequence in zip(output.unbind(), sequences, strict=True):
        values = np.zeros(len(sequence.token_ids), dtype=np.float32)
        values[1:] = tensor[:-1].detach().float().cpu().numpy()
        outputs.append(values)
    return outputs


class Segments:
    """Values of trained tokens as a matrix of one call a line, and back: ``S`` calls of at most ``T`` tokens.

    A call that is trained in windows is one line: its windows come in order. A call comes after those it extends, so
    its tokens are in order within a sequence.
    """

    def __init__(self, sequences: Sequence[TrainSequence]) -> None:
        self.ids = number_segments(sequences)
        """Segment of each token, one ``int64[N]`` per sequence; see `number_segments`."""
        self._trained = [sequence.trained for sequence in sequences]
        lines: dict[tuple[str, int], int] = {}
        flat = [
            lines.setdefault((sequence.rollout_id, call), len(lines))
            for sequence in sequences
            for call in sequence.call_index[sequence.trained].tolist()
        ]
        self._order = np.argsort(np.array(flat, dtype=np.int64), kind="stable")
        lengths = np.bincount(flat) if flat else np.zeros(0, dtype=np.int64)
        self.mask = np.arange(lengths.max(initial=0))[None] < lengths[:, None]
        """``bool[S, T]``"""

    def to_matrix(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Arrange one array per sequence as a ``float32[S, T]`` tensor, 0 where there is no token."""
        import torch

        matrix = np.zeros(self.mask.shape, dtype=np.float32)
        trained = [array[trained] for array, trained in zip(arrays, self._trained, strict=True)]
        matrix[self.mask] = np.concatenate(trained)[self._order]
        return torch.from_numpy(matrix)

    def from_matrix(self, matrix: Any) -> list[Floats]:
        """Convert a matrix back to one array per sequence, 0 for context: the inverse of `to_matrix`."""
        flat = np.empty(len(self._order), dtype=np.float32)
        flat[self._order] = np.asarray(matrix, dtype=np.float32)[self.mask]
        arrays, start = [], 0
        for trained in self._trained:
            values = np.zeros(len(trained), dtype=np.float32)
            count = int(trained.sum())
            values[trained] = flat[start : start + count]
            arrays.append(values)
            start += count
        return arrays


def number_segments(sequences: Sequence[TrainSequence]) -> list[NDArray[np.int64]]:
    """Assign segment numbers over all sequences: one ``int64[N]`` per sequence; `CONTEXT` for context."""
    numbered, num_segments = [], 0
    for sequence in sequences:
        ids = np.full(len(sequence.token_ids), CONTEXT, dtype=np.int64)
        calls, inverse = np.unique(sequence.call_index[sequence.trained], return_inverse=True)
        ids[sequence.trained] = num_segments + inverse
        numbered.append(ids)
        num_segments += len(calls)
    return numbered
