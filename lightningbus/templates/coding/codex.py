"""Codex CLI as an agent: it works in the current directory, a fresh copy of the task's repository.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
import subprocess
from pathlib import Path

PROGRAM = Path(__file__).with_name("node_modules") / ".bin" / "codex"
NUM_LINES = 10
"""Last lines of what a failed program printed that its error shows."""


def solve(task: dict) -> dict:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the hidden tests."""
    address = os.environ["OPENAI_BASE_URL"]
    provider = f'{{name="runner", base_url="{address}", env_key="OPENAI_API_KEY", wire_api="responses"}}'
    command = [PROGRAM, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "policy"]
    command += ["-c", 'model_provider="runner"', "-c", f"model_providers.runner={provider}", task["prompt"]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-NUM_LINES:]
        raise RuntimeError("\n".join([f"{PROGRAM.name} ended with {done.returncode}", *lines]))
    return {"printed": done.stdout[-2000:]}
