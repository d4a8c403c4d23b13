"""The agent of an environment: plays a rollout in it, or writes its tasks. Runs in the environment's own interpreter.

A runner calls `rollout`. ``python -m environment.entrypoint FILE train|heldout [LIMIT]`` writes tasks, a JSON object a
line. ``environment.json`` in the working directory holds the adapter, the environment's name and its arguments.
"""

import importlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from .named_rewards import name_rewards
from .wrong_arguments import describe_wrong_fields


def load_adapter() -> Any:
    """Load the adapter of this directory's environment; programs beside the interpreter are on its path.

    Raises ValueError in a sentence for arguments that pydantic refuses, and what the environment raises.
    """
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # datasets reads it when it is imported
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    config = json.loads(Path("environment.json").read_text(encoding="utf-8"))
    module = importlib.import_module(f".{config['adapter']}", __package__)
    try:
        return module.Adapter(config["name"], config["arguments"])
    except ValueError as error:
        if type(error).__name__ != "ValidationError" or not hasattr(error, "errors"):
            raise
        raise ValueError(describe_wrong_fields(error.errors())) from None


async def rollout(task: dict[str, Any], endpoint: Any = None) -> dict[str, Any]:
    """Play one rollout and return ``{"reward": 1.0, "rewards": {...}, "metrics": {...}}`` with the adapter's fields.

    ``rewards`` are those of the adapter, of one that does not tell them apart its metrics, if they can be rewards by
    name: numbers that are finite, by a name that is short.
    ``endpoint`` is the model's address if many rollouts share this process; else the environment variables have it.
    """
    base_url = endpoint.base_url if endpoint is not None else os.environ["OPENAI_BASE_URL"]
    api_key = endpoint.api_key if endpoint is not None else os.environ["OPENAI_API_KEY"]
    played: dict[str, Any] = await adapter.rollout(task, base_url, api_key, os.environ.get("MODEL", "policy"))
    return {**played, "rewards": name_rewards(played.get("rewards", played.get("metrics", {})))}


def write_tasks(path: Path, split: str, limit: int | None) -> None:
    """Write the tasks of a split, unless the environment has no such split; exit with an error if they are endless."""
    tasks = adapter.tasks(split)
    if tasks is None:
        return
    if limit is None and adapter.is_endless:
        sys.exit("it makes tasks without end: say how many by --limit")
    with path.open("w", encoding="utf-8") as file:
        for task in itertools.islice(tasks, limit):
            file.write(json.dumps(task) + "\n")


adapter = load_adapter()
if __name__ == "__main__":
    write_tasks(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
