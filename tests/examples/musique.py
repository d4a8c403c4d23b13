"""The parts of the retrieval example that its tests share."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.examples.endpoint import EXAMPLES, make_problems, module

RETRIEVAL = EXAMPLES / "retrieval_qa"
data, scoring = module("retrieval_qa", "data"), module("retrieval_qa", "scoring")
policies = module("retrieval_qa", "policy")
make = partial(make_problems, "retrieval_qa")


def lines(path: Path) -> list[Any]:
    """What a file holds, line by line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def searching(python: Path, corpus: Path, *options: str) -> Iterator[str]:
    """The address of the example's retrieval server, while the block runs; it has to stop when it is told to."""
    command = [python, RETRIEVAL / "retrieval_server.py", corpus, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = next(line for line in server.stdout if line.startswith("http://"))
            yield line.split(": ")[0]
        finally:
            server.terminate()
            assert server.wait(timeout=60) in (0, -15), "it stops by itself"
