"""An agent that fails as its task says, or as a file that the task names says while the file is there."""

import random
from pathlib import Path

import steady


def solve(task):
    switch = Path(task.get("switch", "/nowhere"))
    fault = task.get("fault") or (switch.read_text() if switch.exists() else "")
    if fault == "errors":
        raise RuntimeError("this agent fails")
    if fault == "no_calls":
        return {"reward": random.random()}
    return steady.solve(task)
