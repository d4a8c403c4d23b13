"""What every contender trains on: a small Qwen2 with random weights, and rows of many lengths, as of rollouts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
LEARNING_RATE, CLIP_GRAD, BETAS = 1e-6, 1.0, (0.9, 0.99)
WEIGHTS_SEED = 0
ROWS_FILE = "rows.pickle"
"""Beside the model, for every contender's process."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the model and the batch."""

    vocabulary: int = 8192
    hidden: int = 256
    layers: int = 4
    num_rows: int = 48
    median_tokens: float = 90.0
    spread: float = 0.8
    """Standard deviation of the logarithm of a row's tokens."""
    longest: int = 512
    max_tokens: int = 1024
    """Of a micro-batch."""
    group_size: int = 1
    """Rows that have the same prompt."""
    prompt_share: float = 1 / 3
    """Share of a row's tokens that belong to its prompt."""


SIZES = {
    "standard": Size(),
    "small": Size(vocabulary=256, hidden=32, layers=2, num_rows=6, median_tokens=20.0, longest=64, max_tokens=128),
    "groups": Size(
        num_rows=16, median_tokens=97.5, spread=0.0, longest=256, max_tokens=2048, group_size=8, prompt_share=0.61
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt, the response that is trained, and what the engine said of it."""

    prompt: Ints
    response: Ints
    logprobs: NDArray[np.float32]
    """Of each token of the response."""
    advantage: float

    @property
    def token_ids(self) -> Ints:
        """Prompt and response."""
        return np.concatenate([self.prompt, self.response])


def draw_rows(size: Size) -> list[Row]:
    """Rows of a lognormal length, the first part of each its prompt; without log-probabilities yet."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(size.median_tokens), size.spread, size.num_rows)
    rows: list[Row] = []
    for number, length in enumerate(np.clip(lengths, 9, size.longest).astype(int).tolist()):
        tokens = rng.integers(1, size.vocabulary, length)
        cut = int(length * size.prompt_share)
        if number % size.group_size:
            tokens[:cut] = rows[-1].prompt
        blank = np.zeros(length - cut, np.float32)
        rows.append(Row(tokens[:cut], tokens[cut:], blank, (-1.0, 0.5, 1.0)[number % 3]))
    return rows


def count_tokens(rows: list[Row]) -> int:
    """Of prompts and responses, without padding."""
    return sum(len(row.token_ids) for row in rows)


def make_model(size: Size, path: Path) -> None:
    """Write it, the same every time, with a tokenizer that nothing reads from."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    torch.manual_seed(WEIGHTS_SEED)
    config = Qwen2Config(
        vocab_size=size.vocabulary, hidden_size=size.hidden, intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        max_position_embeddings=2 * size.longest, dtype="float32",
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer = Qwen2Tokenizer().train_new_from_iterator(["a"], 300, show_progress=False)
    tokenizer.save_pretrained(path)


def score_rows(rows: list[Row], path: Path) -> list[Row]:
    """The rows with the model's own log-probabilities, as of an engine that serves the newest version."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    scored = []
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(row.token_ids)[None]).logits[0, len(row.prompt) - 1 : -1]
        every = torch.log_softmax(logits, -1)
        values = every.gather(1, torch.from_numpy(row.response)[:, None])[:, 0].numpy()
        scored.append(Row(row.prompt, row.response, values, row.advantage))
    return scored
