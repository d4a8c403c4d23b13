"""The parts of the retrieval example that its tests share."""

import json
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
