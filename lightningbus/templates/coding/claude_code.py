"""Claude Code as an agent: it works in the current directory, a fresh copy of the task's repository.

ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
import subprocess
from pathlib import Path

PROGRAM = Path(__file__).with_name("node_modules") / ".bin" / "claude"
VARIABLES = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}
"""It reaches nothing but the model."""
NUM_LINES = 10
"""Last lines of what a failed program printed that its error shows."""


def solve(task: dict) -> dict:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the hidden tests."""
    command = [PROGRAM, "-p", task["prompt"], "--model", "policy", "--permission-mode", "acceptEdits"]
    command += ["--allowedTools", "Bash,Read,Edit,Write,Grep,Glob"]
    done = subprocess.run(
        command,
        env={**os.environ, **VARIABLES},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-NUM_LINES:]
        raise RuntimeError("\n".join([f"{PROGRAM.name} ended with {done.returncode}", *lines]))
    return {"printed": done.stdout[-2000:]}
