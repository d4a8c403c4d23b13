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
NUM_LINES = 10
"""Last lines of what a failed program printed that its error shows."""


def solve(task: dict) -> dict:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the hidden tests."""
    trajectory = Path.home() / "trajectory.json"
    command = [PROGRAM, "-t", task["prompt"], "-m", "openai/policy", "-y", "-l", "0"]
    command += ["--exit-immediately", "-o", trajectory]
    environment = {**os.environ, **VARIABLES}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-NUM_LINES:]
        raise RuntimeError("\n".join([f"{PROGRAM.name} ended with {done.returncode}", *lines]))
    return {"printed": done.stdout[-2000:]}
