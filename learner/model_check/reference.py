"""The model as transformers publishes it, computed plainly: the reference of learner and engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.engine.adapters import make_lora_config
from lightningbus.learner.engine.engines import find_model_class, name_sdpa
from lightningbus.learner.model_check.lengths import shorten
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Floats
from lightningbus.learner.transitions.sequences import TrainSequence

EAGER, SDPA = "eager", "sdpa"
CHUNK = 256
"""Tokens whose log-probabilities over the vocabulary are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation of rows: an attention by transformers' name for it, and whether rows are packed."""

    attention: str
    is_packed: bool

    def __str__(self) -> str:
        """Name the settings that ask for it."""
        packed = "true" if self.is_packed else "false"
        return f"engine.attn_implementation: {self.attention} with engine.use_remove_padding: {packed}"


class ReferenceModel:
    """A model on the CPU in float32, without dropout."""

    def __init__(self, model_path: Path, *, is_short: bool = False) -> None:
        """Load the model; raises whatever transformers raises for one that it cannot load.

        ``is_short``: with the lengths of its configuration made short, see `lightningbus.learner.model_check.lengths`.
        """
        from transformers import AutoConfig

        self._path = model_path
        self._config = AutoConfig.from_pretrained(model_path, local_files_only=True)
        if is_short:
            shorten(self._config)
        self._class = find_model_class(self._config)
        self._load(EAGER)

    @property
    def vocabulary_size(self) -> int:
        """Number of the model's tokens."""
        return int(self._model.get_input_embeddings().weight.shape[0])

    def add_adapters(self, settings: LearnerSettings) -> Any:
        """Add the adapters of a learner, which are 0 as in its first step; return PEFT's model around this one."""
        from peft import get_peft_model

        return get_peft_model(self._model, make_lora_config(settings, self._config))

    def log_probs(self, rows: Sequence[TrainSequence]) -> list[Floats]:
        """Return the log-probability of each token with eager attention, one row at a time.

        One ``float32[N]`` per row, 0 for its first token.
        """
        self._use(EAGER)
        return [self._forward([row])[0] for row in rows]

    def rounded_log_probs(self, rows: Sequence[TrainSequence]) -> list[Floats]:
        """Return `log_probs` of the model rounded to bfloat16, in which it is left."""
        import torch

        self._use(EAGER)
        self._model.to(torch.bfloat16)
        return self.log_probs(rows)

    def compute(self, rows: Sequence[TrainSequence], computation: Computation) -> list[Floats]:
        """Return the log-probabilities as a learner computes them; raises whatever the model's code raises."""
        self._use(EAGER if computation.attention == EAGER else name_sdpa(self._class))
        return self._forward(rows) if computation.is_packed else self._forward_padded(rows)

    def compute_shared(self, first: TrainSequence, other: TrainSequence, shared: int) -> Floats:
        """Return the log-probabilities of a row, of which the first tokens are computed in another one.

        They are 0 up to the first token of its own. Raises whatever the model's code raises.
        """
        import torch

        self._use(name_sdpa(self._class))
        length = len(first.token_ids)
        ids = np.concatenate([first.token_ids, other.token_ids[shared:]])
        positions = np.concatenate([np.arange(length), np.arange(shared, len(other.token_ids))])
        with torch.no_grad():
            logits = self._model(
                input_ids=torch.from_numpy(ids)[None], position_ids=torch.from_numpy(positions)[None], use_cache=False
            ).logits
        values = np.zeros(len(other.token_ids), np.float32)
        values[shared + 1 :] = _read(logits[0, length:], other.token_ids[shared:])[1:]
        return values

    def _load(self, attention: str) -> None:
        import torch

        self._model: Any = self._class.from_pretrained(
            self._path, config=self._config, dtype=torch.float32, attn_implementation=attention, local_files_only=True
        ).eval()
        self._attention = attention

    def _use(self, attention: str) -> None:
        """Switch the attention; a class with attentions of its own chooses as it is made."""
        if attention == self._attention:
            return
        if self._class._supports_attention_backend:
            self._model.set_attn_implementation(attention)
            self._attention = attention
        else:
            self._load(attention)

    def _forward(self, rows: Sequence[TrainSequence]) -> list[Floats]:
        """Compute rows one after another in one line; a single row is not packed."""
        import torch

        ids = torch.from_numpy(np.concatenate([row.token_ids for row in rows]))[None]
        positions = torch.from_numpy(np.concatenate([np.arange(len(row.token_ids)) for row in rows]))[None]
        with torch.no_grad():
            logits = self._model(input_ids=ids, position_ids=positions, use_cache=False).logits
        return [
            _read(logits[0, start : start + len(row.token_ids)], row.token_ids)
            for start, row in zip(np.cumsum([0, *(len(row.token_ids) for row in rows)]), rows, strict=False)
        ]

    def _forward_padded(self, rows: Sequence[TrainSequence]) -> list[Floats]:
        import torch

        length = max(len(row.token_ids) for row in rows)
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        mask = torch.zeros(len(rows), length, dtype=torch.long)
        for place, row in enumerate(rows):
            ids[place, : len(row.token_ids)] = torch.from_numpy(row.token_ids)
            mask[place, : len(row.token_ids)] = 1
        positions = torch.arange(length)[None].expand(len(rows), -1)
        with torch.no_grad():
            logits = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        return [_read(logits[place, : len(row.token_ids)], row.token_ids) for place, row in enumerate(rows)]


def _read(logits: Any, token_ids: NDArray[np.int64]) -> Floats:
    import torch

    values = np.zeros(len(token_ids), np.float32)
    targets = torch.from_numpy(token_ids)[1:, None]
    for start in range(0, len(token_ids) - 1, CHUNK):
        part = slice(start, start + CHUNK)
        log_probs = logits[:-1][part].float().log_softmax(-1)
        values[1:][part] = log_probs.gather(1, targets[part])[:, 0].numpy()
    return values
