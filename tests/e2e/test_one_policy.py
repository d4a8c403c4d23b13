"""The policy that samples is the policy that is trained: whole jobs on vLLM, by number format, and with adapters.

Before the learner computed at the weights that it publishes, 14 % of the tokens of the newest version were clipped from
the third step on. Power: 8 % clipped among 500 tokens is found with a probability above 0.99.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import python
from tests.learner.conftest import tiny_model

STEPS = 5
AGENT = """
import os
from openai import OpenAI

def solve(task):
    messages = [{"role": "user", "content": task}]
    answer = OpenAI().chat.completions.create(model="policy", messages=messages, max_tokens=16)
    return float(len(answer.choices[0].message.content) % 2)
"""
AGREEMENT = """
SELECT step, metrics['agreement/tokens'] AS num_tokens, metrics['agreement/clipped_share'] AS clipped_share,
    metrics['agreement/k3'] AS k3 FROM training_steps WHERE mapContains(metrics, 'agreement/tokens') ORDER BY step
"""

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("stored", "served", "learner"),
    [
        ("bfloat16", "auto", {"actor": {"optim": {"lr": 1e-4}}}),
        ("float32", "bfloat16", {"actor": {"optim": {"lr": 1e-4}}}),
        ("bfloat16", "float32", {"weights": {"dtype": "bfloat16"}, "actor": {"optim": {"lr": 1e-4}}}),
        ("bfloat16", "auto", {"lora": {"lora_rank": 4}, "actor": {"optim": {"lr": 1e-3}}}),
    ],
    ids=["files", "narrower engine", "wider engine", "merged adapters"],
)
def test_engine_and_learner_are_one_policy_in_each_step(
    tmp_path: Path, stored: str, served: str, learner: dict[str, Any]
) -> None:
    sizes = {"vocab_size": 320, "hidden_size": 128, "max_position_embeddings": 4096, "initializer_range": 0.1}
    tiny_model(tmp_path / "model", dtype=stored, **sizes)
    (tmp_path / "agent.py").write_text(AGENT)
    tasks = (json.dumps({"id": f"q{number}", "input": f"q{number}"}) + "\n" for number in range(8))
    (tmp_path / "tasks.jsonl").write_text("".join(tasks))
    job = {
        "name": "one",
        "bus": {"port": 0},
        "store": {"http_port": 0},
        "inference": [{"model_path": "model", "dtype": served, "max_model_len": 128, "cpu_threads": 1}],
        "runners": [{"entrypoint": "agent:solve", "concurrency": 16}],
        "learner": {
            "model_path": "model", "tasks": "tasks.jsonl", "group_size": 8, "groups_per_step": 4, "max_steps": STEPS,
            "max_staleness": 0, "seq_len": 128, "cpu_threads": 1, **learner,
        },
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    python("-m", "lightningbus", "train", "-c", "run.yaml", cwd=tmp_path)
    rows = json.loads(python("-m", "lightningbus", "query", "--json", AGREEMENT, cwd=tmp_path))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["num_tokens"] >= 100 for row in rows), rows
    assert all(row["clipped_share"] < 0.02 and row["k3"] < 0.01 for row in rows), rows
