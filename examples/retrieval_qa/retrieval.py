"""Passages found by meaning: ``python retrieval.py CORPUS`` indexes the ``passages.jsonl`` of a folder.

`Retriever` searches it. One process has one, the server of `retrieval_server.py`; agents ask that.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from embedding import Embed, embed_sorted, load_embedding
from passage_file import PassageFile
from vector_index import EXACT_UP_TO, PROBES, VectorIndex, build_index


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage and how near it is to a query: the cosine of both vectors."""

    number: int
    score: float
    text: str


class Retriever:
    """The passages of a folder, their index and the embedding model."""

    def __init__(
        self,
        folder: Path,
        embedding: str = "",
        device: str = "cpu",
        threads: int = 1,
        probes: int = PROBES,
        exact_up_to: int = EXACT_UP_TO,
    ) -> None:
        """Builds the index where there is none; raises OSError without passages, ValueError for what does not fit.

        ``embedding``: folder of a sentence-transformers model; none: all-MiniLM-L6-v2.
        """
        faiss.omp_set_num_threads(threads)
        self.passages = PassageFile(folder)
        self._embed: Embed = load_embedding(embedding, device, threads)
        path = folder / f"{embedding.strip('/').replace('/', '-') or 'minilm'}.faiss"
        build_index(path, len(self.passages), self._vectors_of, exact_up_to)
        self.index = VectorIndex(path, len(self.passages), probes)
        dimensions = self._embed(["a"]).shape[1]
        if dimensions != self.index.dimensions:
            raise ValueError(f"{path} has {self.index.dimensions} dimensions, the model has {dimensions}: remove it")

    def search(self, queries: Sequence[str], count: int) -> list[list[Hit]]:
        """For each query the ``count`` passages nearest to it, nearest first."""
        scores, numbers = self.index.search(embed_sorted(self._embed, queries), count)
        return [self._make_hits(*row) for row in zip(scores.tolist(), numbers.tolist(), strict=True)]

    def _make_hits(self, scores: list[float], numbers: list[int]) -> list[Hit]:
        known = [(number, score) for number, score in zip(numbers, scores, strict=True) if number >= 0]
        texts = self.passages.read(number for number, _ in known)
        return [Hit(number, score, text) for (number, score), text in zip(known, texts, strict=True)]

    def _vectors_of(self, numbers: np.ndarray) -> np.ndarray:
        return embed_sorted(self._embed, self.passages.read(numbers))


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a retriever is made with."""
    parser.add_argument("corpus", type=Path, help="folder with passages.jsonl, a JSON string a line")
    parser.add_argument("--embeddings", default="", help="folder of a sentence-transformers model")
    parser.add_argument("--device", default="cpu", help="where that model runs: cpu, cuda")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--probes", type=int, default=PROBES, help="lists a search reads; more: nearer to exact")
    parser.add_argument("--exact-up-to", type=int, default=EXACT_UP_TO, help="passages that are compared one by one")


def make_retriever(options: argparse.Namespace) -> Retriever:
    """The retriever that options name; ends the process with one sentence if it cannot be made."""
    try:
        return Retriever(
            options.corpus, options.embeddings, options.device, options.threads, options.probes, options.exact_up_to
        )
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(str(error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    retriever = make_retriever(parser.parse_args())
    print(f"{len(retriever.passages):,} passages, index {retriever.index.kind}")


if __name__ == "__main__":
    main()
