"""The parts of the retrieval example that its tests share."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.examples.endpoint import EXAMPLES, module

RETRIEVAL = EXAMPLES / "retrieval_qa"
data, scoring = module("retrieval_qa", "data"), module("retrieval_qa", "scoring")
policies = module("retrieval_qa", "policy")


def make(out: Path, *options: str) -> subprocess.CompletedProcess:
    """Makes questions, as a reader does."""
    script = [sys.executable, str(RETRIEVAL / "data.py"), "--out", str(out), *options]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def lines(path: Path) -> list[Any]:
    """What a file holds, line by line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
