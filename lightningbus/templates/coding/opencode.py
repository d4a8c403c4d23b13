"""OpenCode as an agent: it works in the current directory, a fresh copy of the task's repository.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import json
import os
import subprocess
from pathlib import Path

PROGRAM = Path(__file__).with_name("node_modules") / ".bin" / "opencode"
VARIABLES = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
"""It reaches nothing but the model."""
MAX_CONTEXT, MAX_ANSWER = 32768, 4096
"""Tokens of the engine's context, and those that an answer may take of it."""
NUM_LINES = 10
"""Last lines of what a failed program printed that its error shows."""


def solve(task: dict) -> dict:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the hidden tests."""
    options = {"baseURL": os.environ["OPENAI_BASE_URL"], "apiKey": os.environ["OPENAI_API_KEY"]}
    model = {"name": "policy", "tool_call": True, "limit": {"context": MAX_CONTEXT, "output": MAX_ANSWER}}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"policy": model}}
    configuration = {
        "provider": {"runner": provider},
        "model": "runner/policy",
        "small_model": "runner/policy",
        "permission": "allow",
        "share": "disabled",
    }
    environment = {**os.environ, **VARIABLES, "OPENCODE_CONFIG_CONTENT": json.dumps(configuration)}
    done = subprocess.run(
        [PROGRAM, "run", task["prompt"]],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-NUM_LINES:]
        raise RuntimeError("\n".join([f"{PROGRAM.name} ended with {done.returncode}", *lines]))
    return {"printed": done.stdout[-2000:] + done.stderr[-2000:]}
