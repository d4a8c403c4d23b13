"""The parts of the text-to-SQL example that its tests share."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from bus.tasks import read_problems
from tests.examples.endpoint import EXAMPLES, module

TEXT_TO_SQL = EXAMPLES / "text_to_sql"
policies = module("text_to_sql", "policy")
databases = module("text_to_sql", "database")
demonstrations = module("text_to_sql", "demonstrations")


def make(out: Path, *options: str) -> subprocess.CompletedProcess:
    """Makes problems, as a reader does."""
    script = [sys.executable, str(TEXT_TO_SQL / "data.py"), "--out", str(out), *options]
    return subprocess.run(script, capture_output=True, text=True)


def tasks_of(path: Path) -> list[dict[str, Any]]:
    """What the agent is given, line by line."""
    return [problem.input for problem in read_problems(path)]
