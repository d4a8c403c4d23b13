"""A family's tiny model trained to its third step by a whole run, in which the engine swaps before each step.

``python -m tests.families.three_steps NAME`` prints the difference of engine and learner at each step.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

STEPS = 3
COMMAND = (sys.executable, "-m", "lightningbus")
AGENT = """
from openai import OpenAI


def solve(task):
    messages = [{"role": "user", "content": task["question"]}]
    answer = OpenAI().chat.completions.create(model="policy", messages=messages, max_tokens=16)
    text = answer.choices[0].message.content
    return len(set(text)) / 16
"""
QUERY = (
    "SELECT metrics['rollout_corr/log_ppl_abs_diff'] AS difference FROM training_steps "
    "WHERE mapContains(metrics, 'rollout_corr/log_ppl_abs_diff') ORDER BY step"
)


def train(name: str, directory: Path, seconds: float = 900) -> list[float]:
    """Train a family's model; return the mean difference of engine and learner at each step, in nats per token.

    Step n trains on tokens that the engine sampled after swap n. Raises `subprocess.CalledProcessError`.
    """
    from tests.families.families import FAMILIES, save_tiny_model
    from tests.learner.conftest import tiny_tokenizer

    save_tiny_model(FAMILIES[name], directory / "model")
    tiny_tokenizer(directory / "model")
    (directory / "agent.py").write_text(AGENT)
    tasks = [{"id": str(number), "input": {"question": f"{number}?" * 3}} for number in range(8)]
    (directory / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    settings = {
        "name": "three", "bus": {"port": 0}, "store": {"http_port": 0},
        "inference": [
            {"model_path": "model", "dtype": "float32", "max_model_len": 192, "max_num_seqs": 8, "cpu_threads": 1}
        ],
        "runners": [{"entrypoint": "agent:solve", "concurrency": 2}],
        "learner": {
            "model_path": "model", "tasks": "tasks.jsonl", "group_size": 4, "groups_per_step": 1, "max_steps": STEPS,
            "max_staleness": 0, "seq_len": 192, "cpu_threads": 1,
            "actor": {"optim": {"lr": 1e-3}, "old_log_prob_interval": 1},
        },
    }  # fmt: skip
    (directory / "run.yaml").write_text(yaml.safe_dump(settings))
    _run(directory, seconds, "up", "-c", "run.yaml")
    rows = json.loads(_run(directory, seconds, "query", "--run", "runs/three", "--json", QUERY))
    return [float(row["difference"]) for row in rows]


def _run(directory: Path, seconds: float, *arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=directory, capture_output=True, text=True, timeout=seconds, check=True
    )
    return done.stdout


def main() -> None:
    """Train the family that the command line names; a run that ends with an error is described by its last line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no result
    with tempfile.TemporaryDirectory(prefix="family-") as directory:
        try:
            result: dict[str, object] = {"differences": train(sys.argv[1], Path(directory))}
        except subprocess.CalledProcessError as error:
            result = {"refused": " ".join(error.stderr.split())[-300:]}
    json.dump(result, out)
    out.flush()


if __name__ == "__main__":
    main()
