"""``python ask.py AGENT_FILE TASKS``: the mean reward of an agent at ``OPENAI_BASE_URL``, without lightningbus."""

import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    file, tasks = map(Path, sys.argv[1:])
    sys.path.insert(0, str(file.parent))
    agent = importlib.import_module(file.stem)
    rewards = [agent.solve(json.loads(line)["input"])["reward"] for line in tasks.read_text().splitlines()]
    print(sum(rewards) / len(rewards))


if __name__ == "__main__":
    main()
