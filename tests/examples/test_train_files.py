"""The examples' training jobs: settings are checked, tasks read, agents imported; only the weights are not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from lightningbus.run.preflight.job_checks import parse_job, run_checks
from lightningbus.run.preflight.memory_check import Target
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from tests.examples.endpoint import EXAMPLES, make_problems
from tests.learner.conftest import tiny_tokenizer, without_tensors

QWEN = Qwen2Config(
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
"""Qwen2.5-1.5B-Instruct's."""
LLAMA = LlamaConfig(
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
)
"""Llama-3.2-3B-Instruct's."""
LLAMA_CALL = "<|python_tag|>"
"""Token that vLLM's parser of Llama's calls looks for in the tokenizer."""


@pytest.mark.parametrize(
    ("example", "file", "config", "text"),
    [
        ("text_to_sql", "train.yaml", LLAMA, "llama, 28 layers, 3,212.7M parameters"),
        ("math_tools", "train.yaml", LLAMA, "llama, 28 layers, 3,212.7M parameters"),
        ("retrieval_qa", "train.yaml", LLAMA, "llama, 28 layers, 3,212.7M parameters"),
        ("text_to_sql", "small.yaml", QWEN, "qwen2"),
        ("math_tools", "small.yaml", QWEN, "qwen2"),
        ("retrieval_qa", "small.yaml", QWEN, "qwen2"),
        ("text_to_sql", "smollm2.yaml", QWEN, "qwen2"),
        ("math_tools", "smollm2.yaml", QWEN, "qwen2"),
        ("retrieval_qa", "smollm2.yaml", QWEN, "qwen2"),
    ],
)
def test_a_job_can_be_run(
    example: str, file: str, config: PretrainedConfig, text: str,
    environment: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(environment(example))
    fields = yaml.safe_load((EXAMPLES / example / file).read_text())
    settings = validate_settings(RunSettings, brought(example, fields, config, tmp_path), file)
    sentences = list(run_checks(settings, parse_job(settings, file), Target(gpu_memory_gib=80, gpu_tflops=100)))
    assert [line.split(":")[-1].strip() for line in sentences[:2]] == ["1 tasks", "1 tasks"]
    assert sentences[2].startswith("TRAIN_ROLLOUTS: ")
    assert text in sentences[3] and "memory of each of 1 rank" in sentences[4]
    trial = sentences[-1]
    assert trial.startswith("agent:solve: task ") and "model call" in trial and "reward 0" in trial


def brought(example: str, fields: dict[str, Any], config: PretrainedConfig, directory: Path) -> dict[str, Any]:
    """The job with what its reader downloads or makes: a task, and a model's folder, here without tensors."""
    assert make_problems(example, directory / "problems", "--train", "50", "--heldout", "10").returncode == 0
    tasks, model = directory / "tasks.jsonl", directory / "model"
    tasks.write_text((directory / "problems" / "heldout.jsonl").read_text().splitlines(keepends=True)[0])
    tokenizer = tiny_tokenizer(model)
    tokenizer.add_special_tokens({"additional_special_tokens": [LLAMA_CALL]})
    tokenizer.save_pretrained(model)
    config.save_pretrained(model)
    without_tensors(model)
    fields["learner"] |= {"tasks": str(tasks), "model_path": str(model)}
    fields["eval"]["tasks"] = str(tasks)
    for node in fields["inference"]:
        node["model_path"] = str(model)
    return fields
