"""mini-swe-agent as an agent: it works in the current directory, a fresh copy of the task's repository.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("mini")
VARIABLES = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}
"""It neither asks for its set-up nor looks up what the model costs."""


def solve(task: dict) -> dict:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the hidden tests."""
    trajectory = Path.home() / "trajectory.json"
    command = [PROGRAM, "-t", task["prompt"], "-m", "openai/policy", "-y", "-l", "0"]
    command += ["--exit-immediately", "-o", trajectory]
    environment = {**os.environ, **VARIABLES}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    return {"status": done.returncode, "printed": done.stdout[-2000:]}
