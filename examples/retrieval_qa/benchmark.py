"""How large, quick and exact the index is: ``make bench``, which writes ``benchmarks/results/retrieval.json``.

A million passages of 100 words, made from a template. Their vectors are made as well, around 20,000 centres, since to
embed a million passages takes half a day of a core; queries are embedded by the real model. What the index finds is
compared with exact search. What 21 million passages come to is computed from these figures, not measured.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "retrieval.json"
DIMENSIONS, CENTERS, NOISES = 384, 20_000, 65_536
SPREAD, QUERY_SPREAD = 0.7, 0.35
"""Lengths of what is added to a centre of length 1, and to a passage's vector for a query near it."""
QUERIES, CLIENTS, SEARCHES = 200, (1, 16), 640
PROBES = (8, 16, 32, 64)
WIKIPEDIA = 21_015_324
"""Passages of 100 words in DPR's Wikipedia (arXiv:2004.04906)."""
WORDS = ("town", "river", "bridge", "market", "garden", "winter", "letter", "harbor", "castle", "painter")


def write_passages(path: Path, count: int) -> None:
    """Passages of 100 words, each with its number."""
    rng = random.Random(0)
    tails = [" ".join(rng.choices(WORDS, k=92)) for _ in range(997)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps(f"Number {number}: Person {number % 9973} was born in Town {number % 499}. ")[:-1])
            file.write(f'{tails[number % 997]}"\n')


class MadeVectors:
    """A vector for every passage number, the same each time."""

    def __init__(self) -> None:
        import numpy as np

        rng = np.random.default_rng(0)
        self._centers = _unit(rng.standard_normal((CENTERS, DIMENSIONS), dtype=np.float32))
        self._noises = _unit(rng.standard_normal((NOISES, DIMENSIONS), dtype=np.float32))
        self.called: list[tuple[float, float]] = []

    def __call__(self, numbers):
        """Float32 [numbers, dimensions], of length 1; when it began and ended is kept."""
        began = time.perf_counter()
        noise = self._noises[(numbers * 2_654_435_761) % NOISES]
        vectors = _unit(self._centers[numbers % CENTERS] + SPREAD * noise)
        self.called.append((began, time.perf_counter()))
        return vectors

    def queries(self, count: int, num_passages: int):
        """Vectors near passages."""
        import numpy as np

        rng = np.random.default_rng(1)
        near = _unit(rng.standard_normal((count, DIMENSIONS), dtype=np.float32))
        return _unit(self(rng.integers(num_passages, size=count)) + QUERY_SPREAD * near)


def _unit(vectors):
    from embedding import normalize

    return normalize(vectors)


def build(corpus: Path, vectors: MadeVectors, num_passages: int) -> dict:
    """Seconds of each part of the build, without those that the vectors took."""
    from passage_file import OFFSETS, PassageFile
    from vector_index import build_index, num_lists_for

    began = time.perf_counter()
    PassageFile(corpus)
    offsets_seconds = time.perf_counter() - began
    build_index(corpus / "minilm.faiss", num_passages, vectors)
    ended = time.perf_counter()
    (_, train), *blocks = vectors.called
    adding = [end for _, end in blocks]
    starts = [start for start, _ in blocks[1:]] or [ended]
    return {
        "lists": num_lists_for(num_passages),
        "offsets_seconds": round(offsets_seconds, 1),
        "train_seconds": round(blocks[0][0] - train, 1),
        "add_and_merge_seconds": round(sum(b - a for a, b in zip(adding, [*starts, ended], strict=False)), 1),
        "index_bytes": sum((corpus / f"minilm.{part}").stat().st_size for part in ("faiss", "ivfdata")),
        "offsets_bytes": (corpus / OFFSETS).stat().st_size,
        "passages_bytes": (corpus / "passages.jsonl").stat().st_size,
    }


def compare(corpus: Path, vectors: MadeVectors, num_passages: int) -> list[dict]:
    """Recall@2 against exact search and milliseconds of a search of the index alone, for several ``probes``."""
    import faiss
    import numpy as np
    from vector_index import VectorIndex

    faiss.omp_set_num_threads(1)
    queries = vectors.queries(QUERIES, num_passages)
    best_scores, best = np.empty((QUERIES, 0), np.float32), np.empty((QUERIES, 0), np.int64)
    for start in range(0, num_passages, 100_000):
        numbers = np.arange(start, min(start + 100_000, num_passages))
        scores, places = faiss.knn(queries, vectors(numbers), 2, metric=faiss.METRIC_INNER_PRODUCT)
        best_scores, best = np.hstack([best_scores, scores]), np.hstack([best, numbers[places]])
        order = np.argsort(-best_scores, axis=1)[:, :2]
        best_scores, best = (np.take_along_axis(array, order, axis=1) for array in (best_scores, best))
    rows = []
    for probes in PROBES:
        index = VectorIndex(corpus / "minilm.faiss", num_passages, probes)
        index.search(queries, 2)  # what is read often is in the page cache
        seconds, nearest = [], []
        for query in queries:
            began = time.perf_counter()
            nearest.append(index.search(query[None], 2)[1][0])
            seconds.append(time.perf_counter() - began)
        hits = sum(len(set(a) & set(b)) for a, b in zip(np.array(nearest).tolist(), best.tolist(), strict=True))
        rows.append({"probes": probes, "recall_at_2": round(hits / (2 * QUERIES), 4), "ms": _ms(median(seconds))})
    return rows


async def load(url: str, clients: int, searches: int) -> dict:
    """Milliseconds of searches that so many clients ask one after the other, each with queries of its own."""
    import httpx2

    seconds: list[float] = []
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:

        async def ask(number: int) -> None:
            for at in range(searches // clients):
                query = f"birthplace of Person {number * 1000 + at}"
                began = time.perf_counter()
                (await client.post("/search", json={"query": query, "count": 2})).raise_for_status()
                seconds.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*map(ask, range(clients)))
        spent = time.perf_counter() - began
    return {
        "clients": clients,
        "p50_ms": _ms(median(seconds)),
        "p99_ms": _ms(quantiles(seconds, n=100)[98]),
        "per_second": round(len(seconds) / spent),
    }


def serve_and_measure(corpus: Path) -> dict:
    """The server's memory, and how quick it is."""
    command = [sys.executable, str(HERE / "retrieval_server.py"), str(corpus), "--port", "0"]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(line for line in server.stdout if line.startswith("http://")).split(": ")[0]
        started = round(time.perf_counter() - began, 1)
        before = memory(server.pid)
        asyncio.run(load(url, 1, 64))
        rows = [asyncio.run(load(url, clients, SEARCHES)) for clients in CLIENTS]
        return {"start_seconds": started, "memory_at_start": before, "memory": memory(server.pid), "searches": rows}
    finally:
        server.terminate()
        server.wait()


def memory(pid: int) -> dict:
    """Bytes resident: of its own, and of mapped files, which the kernel takes back when it needs them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    return {"own_bytes": fields["RssAnon"], "mapped_bytes": fields["RssFile"]}


def embedding_rate(corpus: Path) -> float:
    """Passages of 100 words that the model embeds a second, on one thread."""
    from embedding import embed_sorted, load_embedding
    from passage_file import PassageFile

    embed, texts = load_embedding(), PassageFile(corpus).read(range(64))
    embed(texts[:2])
    began = time.perf_counter()
    embed_sorted(embed, texts)
    return round(len(texts) / (time.perf_counter() - began), 1)


def extrapolate(measured: dict, count: int = WIKIPEDIA) -> dict:
    """What more passages come to, computed: lists grow by the root of their number, and so does a list's length.

    Training is vectors x lists, adding is passages x lists, a search is centroids + probes x length of a list.
    """
    times = count / measured["passages"]
    built, row = measured["build"], next(row for row in measured["index"] if row["probes"] == 32)
    return {
        "passages": count,
        "index_bytes": round(built["index_bytes"] * times),
        "offsets_bytes": round(built["offsets_bytes"] * times),
        "train_seconds": round(built["train_seconds"] * times),
        "add_and_merge_seconds": round(built["add_and_merge_seconds"] * times * math.sqrt(times)),
        "embedding_core_hours": round(count / measured["embedded_per_second"] / 3600),
        "search_ms": round(row["ms"] * math.sqrt(times), 1),
        "centroid_bytes": round(built["lists"] * math.sqrt(times)) * DIMENSIONS * 4,
    }


def table(measured: dict) -> str:
    """As Markdown: what was measured beside what is computed."""
    built, more = measured["build"], measured["extrapolated"]
    row = next(row for row in measured["index"] if row["probes"] == 32)
    own_bytes = measured["server"]["memory"]["own_bytes"]
    lines = [
        ("passages", f"{measured['passages']:,}", f"{more['passages']:,}, computed"),
        ("index on disk", _size(built["index_bytes"]), _size(more["index_bytes"])),
        ("offsets of passages on disk", _size(built["offsets_bytes"]), _size(more["offsets_bytes"])),
        (
            "build of the index, without embeddings",
            f"{built['train_seconds'] + built['add_and_merge_seconds']:,.0f} s",
            f"{(more['train_seconds'] + more['add_and_merge_seconds']) / 3600:,.1f} h",
        ),
        (
            f"embeddings, {measured['embedded_per_second']:g} passages a second and core",
            "made, not embedded",
            f"{more['embedding_core_hours']:,} core hours",
        ),
        ("server, resident: memory of its own", _size(own_bytes), _size(own_bytes + more["centroid_bytes"])),
        (
            "server, resident: mapped files",
            _size(measured["server"]["memory"]["mapped_bytes"]),
            "what the kernel spares",
        ),
        ("index alone, ms a search", f"{row['ms']:g}", f"{more['search_ms']:g}"),
        ("recall@2 against exact search", f"{row['recall_at_2']:.3f}", ""),
    ]
    for row in measured["server"]["searches"]:
        clients = f"{row['clients']} client{'s' if row['clients'] > 1 else ''}"
        lines.append((f"server, {clients}: p50 / p99 ms", f"{row['p50_ms']:g} / {row['p99_ms']:g}", ""))
    return "\n".join(["| | measured | |", "|---|---|---|", *(f"| {' | '.join(line)} |" for line in lines)])


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, default=HERE.parents[1] / "runs" / "bench-retrieval")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    count, corpus = options.passages, options.work
    corpus.mkdir(parents=True, exist_ok=True)
    if list(corpus.iterdir()):
        sys.exit(f"{corpus} is not empty: remove it, so that the build is measured from its start")
    write_passages(corpus / "passages.jsonl", count)
    vectors = MadeVectors()
    measured = {
        "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "passages": count,
        "load_average_before": round(os.getloadavg()[0], 1),
        "build": build(corpus, vectors, count),
        "index": compare(corpus, vectors, count),
        "embedded_per_second": embedding_rate(corpus),
        "server": serve_and_measure(corpus),
    }
    measured |= {"load_average_after": round(os.getloadavg()[0], 1), "extrapolated": extrapolate(measured)}
    options.results.write_text(json.dumps(measured, indent=1) + "\n")
    print(table(measured))


if __name__ == "__main__":
    main()
