"""Tasks, repositories, hidden tests and demonstrations: ``python data.py --out DIR``.

DIR gets ``train.jsonl``, ``heldout.jsonl``, ``workspaces`` and ``chats.jsonl``: right conversations on tasks to train
on, as mini-swe-agent has them with ``mini.yaml``.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from repairs import Repair, make_repairs

GRADER = Path(__file__).parents[2] / "lightningbus/templates/coding/run_hidden.py"
"""Runs each hidden test in a process of its own."""
CONFIG = Path(__file__).with_name("mini.yaml")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def write_repository(repair: Repair, workspaces: Path) -> None:
    """Write the repository and, apart from it, its hidden test."""
    directory, hidden = workspaces / repair.name, workspaces / "hidden" / repair.name / "hidden"
    directory.mkdir(parents=True)
    hidden.mkdir(parents=True)
    (directory / repair.file).write_text(repair.source)
    (hidden / "tests_of_task.py").write_text(repair.test)
    shutil.copy(GRADER, hidden / "run_hidden.py")


def make_task(repair: Repair) -> dict[str, Any]:
    """Make the line of a repository in a file of tasks."""
    grade = {
        "files": f"hidden/{repair.name}",
        "command": ["python3", "-I", "hidden/run_hidden.py"],
        "timeout_seconds": 60,
        "needs_result": True,
    }
    task = {"prompt": repair.prompt, "workspace": {"directory": repair.name, "grade": grade}}
    return {"id": repair.name, "input": task, "labels": {"kind": repair.kind}}


def make_chat(repair: Repair, system: str) -> dict[str, Any]:
    """Make a right conversation: read the file, mend it, submit."""
    turns = [
        ("system", system),
        ("user", repair.prompt),
        ("assistant", write_block(f"cat {repair.file}")),
        ("user", repair.source),
        ("assistant", write_block(repair.command)),
        ("user", "No output."),
        ("assistant", write_block(SUBMIT)),
    ]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def write_block(command: str) -> str:
    """Write a command as the agent reads it."""
    return f"```bash\n{command}\n```"


def main() -> None:
    """Write all files by command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heldout", type=int, default=40)
    parser.add_argument("--chats", type=int, default=128, help="how many conversations to learn from")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    repairs = make_repairs()
    for repair in repairs:
        write_repository(repair, options.out / "workspaces")
    system = yaml.safe_load(CONFIG.read_text())["agent"]["system_template"]
    train, heldout = repairs[options.heldout :], repairs[: options.heldout]
    files = {
        "train.jsonl": [make_task(repair) for repair in train],
        "heldout.jsonl": [make_task(repair) for repair in heldout],
        "chats.jsonl": [make_chat(repair, system) for repair in train[: options.chats]],
    }
    for name, lines in files.items():
        (options.out / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
