"""mini-swe-agent as it is: a process for each task, in the current directory, a copy of the task's repository.

OPENAI_BASE_URL and OPENAI_API_KEY say where the model is.
"""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("mini")
CONFIG = Path(__file__).with_name("mini.yaml")
VARIABLES = {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "true"}
"""It neither asks for its set-up nor looks up what models cost."""


def solve(task: dict) -> dict:
    """Work on one task, ``{"prompt": ...}``. Its reward is that of the hidden tests."""
    trajectory = Path.home() / "trajectory.json"
    command = [PROGRAM, "-c", CONFIG, "-m", "openai/policy", "-t", task["prompt"], "-o", trajectory]
    environment = {**os.environ, **VARIABLES}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    return {"status": done.returncode, "printed": done.stdout[-2000:]}
