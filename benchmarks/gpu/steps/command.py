"""A command of ``lightningbus`` that a step measures from start to end."""

import subprocess
import sys
from pathlib import Path


class CommandError(Exception):
    """The command ended with an error; the text is its last words."""


def run_lightningbus(*words: str, cwd: Path | None = None) -> None:
    """Run a command to its end; raises `CommandError`."""
    command = [sys.executable, "-m", "lightningbus", *words]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    print(completed.stdout, completed.stderr, sep="\n", flush=True)  # the step's log
    if completed.returncode:
        lines = [line for line in completed.stderr.splitlines() if line.strip()]
        raise CommandError(
            f"lightningbus {words[0]} ended with {completed.returncode}: {lines[-1] if lines else 'no output'}"
        )
