"""Codex CLI as an agent: it works in the current directory, a fresh copy of the task's repository.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
import subprocess
from pathlib import Path

PROGRAM = Path(__file__).with_name("node_modules") / ".bin" / "codex"


def solve(task: dict) -> dict:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the hidden tests."""
    address = os.environ["OPENAI_BASE_URL"]
    provider = f'{{name="runner", base_url="{address}", env_key="OPENAI_API_KEY", wire_api="responses"}}'
    command = [PROGRAM, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "policy"]
    command += ["-c", 'model_provider="runner"', "-c", f"model_providers.runner={provider}", task["prompt"]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return {"status": done.returncode, "printed": done.stdout[-2000:]}
