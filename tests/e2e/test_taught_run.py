"""A step that learns from the likeliest tokens of a frozen node and of its own with a hint: real vLLM, real scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.teacher.score_file import ScoreFile
from tests.commands import python
from tests.learner.conftest import tiny_model, tiny_tokenizer
from tests.learner.test_hint import CHAT, TEXT

TASKS, SAMPLES, TOP_K = 4, 2, 24
CALLS = """
SELECT execution_id, prompts.prompt_ids AS prompt_ids, completions.response_ids AS response_ids
FROM completions INNER JOIN prompts USING (execution_id, call)
WHERE completions.rollout_id IN (SELECT rollout_id FROM training_rollouts WHERE trained)
"""
METRICS = "SELECT metrics FROM training_steps WHERE step = 1"

pytestmark = pytest.mark.timeout(900)


def sized(directory: Path, layers: int) -> Path:
    """A model with the head size of vLLM's attention on CPUs."""
    sizes = {"vocab_size": 320, "hidden_size": 64, "max_position_embeddings": 512, "num_hidden_layers": layers}
    path = tiny_model(directory, **sizes)
    tokenizer = tiny_tokenizer(path)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(path)
    return path


def check(model: Any, scores: TeacherScores, prompt: list[int], response: list[int]) -> None:
    """Compare scores with a model's own log-probabilities."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    every = torch.log_softmax(logits, -1)
    np.testing.assert_allclose(scores.logprobs, every.gather(1, torch.tensor(response)[:, None])[:, 0], atol=1e-3)
    np.testing.assert_allclose(scores.top_logprobs, every.topk(TOP_K).values, atol=1e-3)
    by_id = every.gather(1, torch.from_numpy(scores.top_ids.astype(np.int64)))
    np.testing.assert_allclose(scores.top_logprobs, by_id, atol=1e-3)


def test_a_step_learns_from_the_likeliest_tokens_that_vllm_gives(tmp_path: Path) -> None:
    """More of them than vLLM gives by itself; each score is that of the node's model behind the teacher's prompt."""
    student, large = sized(tmp_path / "student", 1), sized(tmp_path / "large", 2)
    tokenizer = tiny_tokenizer(tmp_path)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    lines = [
        {
            "id": f"t{number}",
            "input": {"prompt_ids": ids(f"#user {number}\n#a "), "max_tokens": 6},
            "labels": {"half": str(number % 2)},
        }
        for number in range(TASKS)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 8, "cpu_threads": 1}
    top = {"top_k": TOP_K, "direction": "forward"}
    job: dict[str, Any] = {
        "name": "taught",
        "runs": str(tmp_path / "runs"),
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.1},
        "inference": [
            {"model_path": str(student), **engine},
            {"model_path": str(large), "model": "large", "frozen": True, **engine},
        ],
        "runners": [{"entrypoint": "lightningbus.tasks.recorded_prompts:answer", "concurrency": 2}],
        "learner": {
            "model_path": str(student), "tasks": str(tmp_path / "tasks.jsonl"), "group_size": SAMPLES,
            "groups_per_step": TASKS, "max_steps": 1, "cpu_threads": 1, "seq_len": 64, "loss_weights": {"rl": 0},
            "teacher": [
                {"name": "large", "model": "large", "labels": {"half": "0"}, **top},
                {"name": "itself", "model": "policy", "hint": TEXT, **top},
            ],
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
    assert metrics["tokens/scored/large"] > 0 and metrics["tokens/scored/itself"] > 0
    assert metrics["actor/loss"] == pytest.approx(metrics["actor/teacher_kl"])
    models = {
        name: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for name, path in (("large", large), ("itself", student))
    }
    (path,) = tmp_path.rglob("teacher.sqlite")
    file, checked = ScoreFile(path.parent), list[str]()
    for call in query(CALLS):
        for name, model in models.items():
            scores, prompt = file.find(call["execution_id"], name, TOP_K), call["prompt_ids"]
            if scores is None:
                continue
            begin = ids("#a ")
            hint = ids(f"#user {TEXT}\n") if name == "itself" else []
            check(model, scores, [*prompt[: -len(begin)], *hint, *begin], call["response_ids"])
            checked.append(name)
    file.close()
    assert sorted(checked) == ["itself"] * (TASKS * SAMPLES // 2) + ["large"] * (TASKS * SAMPLES // 2)
