"""A shell as an agent: the model writes commands, and reads what they print, until it writes none.

Any other agent can take its place, such as one of `lightningbus init`: the input of a task is the same.
"""

import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from typing import Any

PROMPT = (
    "You work in a Linux shell without a network. Write the commands of a turn in one ```bash block. You then read "
    "what they print. Each block starts in the same directory; files stay, variables do not. When you are done, "
    "answer without a block."
)
BLOCK = re.compile(r"```(?:bash|sh)?[ \t]*\n(.*?)```", re.DOTALL)
MAX_TURNS = 30
COMMAND_SECONDS = 60.0
MAX_OUTPUT = 8_000
"""Characters that the model reads of what a block prints, half from its start and half from its end."""
VARIABLES = ("HOME", "LANG", "PATH", "WORKSPACE")


def solve(task: dict[str, Any]) -> dict[str, Any]:
    """Work on one task, the ``input`` of its line in tasks.jsonl. The reward is that of the task's own tests."""
    deadline = time.monotonic() + (task["seconds"] or float("inf"))
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": task["prompt"]}]
    num_commands = 0
    while num_commands < MAX_TURNS and time.monotonic() < deadline:
        text = ask(messages)
        blocks = BLOCK.findall(text)
        if not blocks:
            break
        num_commands += 1
        output = run("\n".join([task["setup"], *blocks]), min(COMMAND_SECONDS, deadline - time.monotonic()))
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": output}]
    return {"commands": num_commands}


def ask(messages: list[dict[str, str]]) -> str:
    """Ask the model."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"] or ""


def run(script: str, seconds: float) -> str:
    """Run a script; return what it printed, and how it ended."""
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    with tempfile.TemporaryFile() as file:  # what it leaves running may hold it
        try:
            status = subprocess.run(
                ["/bin/bash", "-c", script], env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, timeout=max(seconds, 0.0),
            ).returncode  # fmt: skip
            note = f"[status {status}]"
        except subprocess.TimeoutExpired:
            note = f"[no end within {seconds:g} s]"
        file.seek(0)
        output = file.read().decode(errors="replace")
    half = MAX_OUTPUT // 2
    return (output if len(output) <= MAX_OUTPUT else f"{output[:half]}\n...\n{output[-half:]}") + note
