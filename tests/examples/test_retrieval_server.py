"""The retrieval server: what it answers, what it refuses, and an index of many passages that stays on disk."""

import json
import os
import select
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.examples.musique import RETRIEVAL, lines, make, searching

LISTS = ("--exact-up-to", "100", "--probes", "72")
"""An index of lists though there are few passages; a search reads all of them, so that it is as good as exact."""


@pytest.fixture(scope="module")
def python(environment: Callable[[str], Path]) -> Path:
    return environment("retrieval_qa") / ".venv" / "bin" / "python"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("musique")
    assert make(out).returncode == 0
    return out / "corpus"


@pytest.fixture(scope="module")
def url(python: Path, corpus: Path) -> Iterator[str]:
    with searching(python, corpus) as address:
        yield address


def ask(url: str, body: object = None, path: str = "/search") -> tuple[int, Any]:
    """Status and answer; bytes are sent as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data=data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def run(python: Path, script: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [python, RETRIEVAL / script, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_passage_is_the_nearest_to_itself_and_is_read_from_its_line(url: str, corpus: Path) -> None:
    passages = lines(corpus / "passages.jsonl")
    for number in (0, 7, len(passages) - 1):
        status, answer = ask(url, {"query": passages[number], "count": 3})
        first, *others = answer["passages"]
        assert (status, first["number"], first["text"], len(others)) == (200, number, passages[number], 2)
        assert first["score"] == pytest.approx(1.0, abs=1e-3) and first["score"] >= others[0]["score"]


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        ([], 400, 'needs {"query"'),
        ({"query": 1}, 400, 'needs {"query"'),
        ({"query": "a", "count": 0}, 400, "from 1 to 100"),
        ({"query": "a", "count": True}, 400, "from 1 to 100"),
        ({"query": "a", "count": 101}, 400, "from 1 to 100"),
        ({"query": "\ud83d"}, 400, "half a character"),
        (b" " * 2**20 + b"{}", 413, "bytes at most"),
        (None, 405, "Method Not Allowed"),
    ],
)
def test_what_is_no_search_is_refused_with_a_reason_and_the_next_is_answered(
    url: str, body: object, status: int, sentence: str
) -> None:
    actual, answer = ask(url, body)
    assert actual == status and sentence in answer["error"]
    assert ask(url, {"query": ""})[0] == 200


def test_searches_that_come_together_are_batched_and_each_gets_its_own_answer(url: str, corpus: Path) -> None:
    passages = lines(corpus / "passages.jsonl")[:200]
    before = ask(url, path="/health")[1]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda text: ask(url, {"query": text, "count": 1})[1], passages))
    assert [answer["passages"][0]["text"] for answer in answers] == passages
    after = ask(url, path="/health")[1]
    assert after["searches"] - before["searches"] == len(passages)
    assert after["batches"] - before["batches"] < len(passages)


def test_health_says_what_is_searched(url: str, corpus: Path) -> None:
    status, answer = ask(url, path="/health")
    assert (status, answer["status"], answer["index"], answer["dimensions"]) == (200, "ok", "flat", 384)
    assert answer["passages"] == len(lines(corpus / "passages.jsonl"))


def test_an_index_of_lists_on_disk_finds_what_exact_search_finds(
    python: Path, url: str, corpus: Path, tmp_path: Path
) -> None:
    passages = lines(corpus / "passages.jsonl")
    (tmp_path / "passages.jsonl").write_bytes((corpus / "passages.jsonl").read_bytes())
    with searching(python, tmp_path, *LISTS) as of_lists:
        assert ask(of_lists, path="/health")[1]["index"] == "IVF72,SQ8"
        (moved := tmp_path / "moved").mkdir()
        for file in ("minilm.faiss", "minilm.ivfdata", "passages.jsonl"):
            (moved / file).write_bytes((tmp_path / file).read_bytes())
        hits = [
            {passage["text"] for passage in ask(at, {"query": text, "count": 2})[1]["passages"]}
            for text in passages[::50]
            for at in (url, of_lists)
        ]
    same = [len(exact & listed) for exact, listed in zip(hits[::2], hits[1::2], strict=True)]
    assert sum(same) >= 0.9 * 2 * len(same)
    assert not (tmp_path / "minilm.blocks").exists(), "what was built on the way is gone"
    assert (tmp_path / "minilm.ivfdata").stat().st_size >= len(passages) * (384 + 8)
    with searching(python, moved, *LISTS) as elsewhere:
        assert ask(elsewhere, {"query": passages[3], "count": 1})[1]["passages"][0]["text"] == passages[3]


def test_a_build_that_was_stopped_goes_on_with_the_next_block(python: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "passages.jsonl").write_bytes((corpus / "passages.jsonl").read_bytes())
    script = """
import sys, numpy as np, vector_index
from pathlib import Path
vector_index.BLOCK = 300
rows = np.random.default_rng(0).standard_normal((1000, 16), dtype=np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
sizes = []
def vectors_of(numbers):
    sizes.append(len(numbers))
    if sys.argv[2] == "stop" and len(sizes) == 3:
        raise KeyboardInterrupt
    return rows[numbers]
vector_index.build_index(Path(sys.argv[1]), 1000, vectors_of, exact_up_to=10)
index = vector_index.VectorIndex(Path(sys.argv[1]), 1000, probes=63)
print(sizes, (index.search(rows, 1)[1][:, 0] == np.arange(1000)).mean())
"""
    command = [python, "-c", script, tmp_path / "made.faiss"]
    first, second = (
        subprocess.run([*command, how], cwd=RETRIEVAL, capture_output=True, text=True, check=False)
        for how in ("stop", "whole")
    )
    assert "300 of 1,000 passages" in first.stderr and "KeyboardInterrupt" in first.stderr
    assert "[300, 300, 100] 1.0" in second.stdout, second.stderr


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "No such file or directory"),
        ({"passages.jsonl": ""}, "passages.jsonl holds no passage"),
        ({"passages.jsonl": '"a"\n{"b": 1}\n'}, "passages.jsonl line 2 is not a JSON string"),
    ],
)
def test_a_corpus_that_cannot_be_searched_is_one_sentence(
    python: Path, tmp_path: Path, files: dict[str, str], sentence: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = run(python, "retrieval_server.py", tmp_path, "--port", 0)
    assert done.returncode == 1 and sentence in done.stderr and "Traceback" not in done.stderr


def test_an_index_of_other_passages_is_refused(python: Path, corpus: Path, tmp_path: Path, url: str) -> None:
    (tmp_path / "minilm.faiss").write_bytes((corpus / "minilm.faiss").read_bytes())
    (tmp_path / "passages.jsonl").write_text('"one"\n"two"')
    done = run(python, "retrieval.py", tmp_path)
    assert done.returncode == 1 and "but there are 2 passages: remove it" in done.stderr


def test_another_embedding_model_needs_its_package(python: Path, corpus: Path) -> None:
    done = run(python, "retrieval.py", corpus, "--embeddings", "/models/bge-small-en-v1.5")
    assert done.returncode == 1 and "bge-small-en-v1.5 need sentence-transformers" in done.stderr


def test_in_the_background_it_returns_once_it_listens_and_a_signal_stops_it(
    python: Path, corpus: Path, tmp_path: Path, url: str
) -> None:
    pid_file = tmp_path / "server.pid"
    done = run(python, "retrieval_server.py", corpus, "--port", 0, "--background", pid_file)
    assert done.returncode == 0, done.stderr
    address, pid = done.stdout.split(": ")[0], int(pid_file.read_text())
    try:
        assert address.startswith("http://127.0.0.1:") and ask(address, {"query": "a"})[0] == 200
        taken = run(
            python,
            "retrieval_server.py",
            corpus,
            "--port",
            address.rpartition(":")[2],
            "--background",
            tmp_path / "two",
        )
        assert taken.returncode == 1 and "choose another --port" in taken.stderr
    finally:
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    assert select.select([handle], [], [], 60)[0], "it has ended"
    os.close(handle)
