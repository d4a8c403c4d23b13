"""A step that learns from the likeliest tokens of a frozen node: real vLLM, and what the learner has of its scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from lightningbus.learner.teacher.score_file import ScoreFile
from tests.commands import python
from tests.learner.conftest import tiny_model

TOP_K, SAMPLES = 24, 2
CALLS = """
SELECT execution_id, prompts.prompt_ids AS prompt_ids, completions.response_ids AS response_ids
FROM completions INNER JOIN prompts USING (execution_id, call)
"""
METRICS = "SELECT metrics FROM training_steps WHERE step = 1"

pytestmark = pytest.mark.timeout(900)


def sized(directory: Path, layers: int) -> Path:
    """A model with the head size of vLLM's attention on CPUs."""
    sizes = {"vocab_size": 320, "hidden_size": 64, "max_position_embeddings": 512, "num_hidden_layers": layers}
    return tiny_model(directory, **sizes)


def test_a_step_learns_from_the_likeliest_tokens_that_vllm_gives(tmp_path: Path) -> None:
    """More of them than vLLM gives by itself; each score is the frozen model's own."""
    lines = [
        {"id": f"t{number}", "input": {"prompt_ids": [5 + number, 6, 7, 8], "max_tokens": 6}} for number in range(4)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 8, "cpu_threads": 1}
    student, teacher = sized(tmp_path / "student", 1), sized(tmp_path / "teacher", 2)
    job: dict[str, Any] = {
        "name": "taught",
        "runs": str(tmp_path / "runs"),
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.1},
        "inference": [
            {"model_path": str(student), **engine},
            {"model_path": str(teacher), "model": "large", "frozen": True, **engine},
        ],
        "runners": [{"entrypoint": "lightningbus.tasks.recorded_prompts:answer", "concurrency": 2}],
        "learner": {
            "model_path": str(student), "tasks": str(tmp_path / "tasks.jsonl"), "group_size": SAMPLES,
            "groups_per_step": 2, "max_steps": 1, "cpu_threads": 1, "seq_len": 64,
            "teacher": {"model": "large", "top_k": TOP_K, "direction": "forward"}, "loss_weights": {"rl": 0},
        },
        "eval": {"tasks": str(tmp_path / "tasks.jsonl"), "samples": 1, "every": 1},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    python("-m", "lightningbus", "train", "-c", tmp_path / "run.yaml", cwd=tmp_path)

    def query(sql: str) -> list[dict[str, Any]]:
        return json.loads(python("-m", "lightningbus", "query", "--json", sql, cwd=tmp_path))  # type: ignore[no-any-return]

    (row,) = query(METRICS)
    metrics = json.loads(row["metrics"]) if isinstance(row["metrics"], str) else row["metrics"]
    assert metrics["tokens/scored"] == metrics["tokens"] > 0 and metrics["actor/teacher_kl"] > 0
    assert metrics["actor/loss"] == pytest.approx(metrics["actor/teacher_kl"])
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    (path,) = tmp_path.rglob("teacher.sqlite")
    file, num_checked = ScoreFile(path.parent), 0
    for call in query(CALLS):
        scores = file.find(call["execution_id"], "teacher", TOP_K)
        if scores is None:
            continue  # of an evaluation
        prompt, response = call["prompt_ids"], call["response_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        values, _ = (every := torch.log_softmax(logits, -1)).topk(TOP_K)
        np.testing.assert_allclose(scores.logprobs, every.gather(1, torch.tensor(response)[:, None])[:, 0], atol=1e-3)
        np.testing.assert_allclose(scores.top_logprobs, values, atol=1e-3)
        by_id = every.gather(1, torch.from_numpy(scores.top_ids.astype(np.int64)))
        np.testing.assert_allclose(scores.top_logprobs, by_id, atol=1e-3)
        num_checked += 1
    file.close()
    assert num_checked >= 2 * SAMPLES
