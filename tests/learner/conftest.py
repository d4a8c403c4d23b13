"""A tiny model for verl's engine, and trainers on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from lightningbus.learner.batching.batch import BatchBuilder
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.estimators import make_estimator
from lightningbus.learner.training.verl_trainer import VerlTrainer

LEARNING_RATE = 1e-3


def tiny_model(path: Path, **changes: Any) -> Path:
    """A model of 64 tokens with tied embeddings, the same every time; ``changes`` are of its configuration."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **changes,
    }
    model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    model.to(getattr(torch, sizes["dtype"])).save_pretrained(path)
    tiny_tokenizer(path)
    return path


def fitting_model(path: Path) -> Path:
    """A tiny model for a whole job: it knows all tokens of its tokenizer, and has the context that engines get."""
    return tiny_model(path, vocab_size=320, max_position_embeddings=4096)


def tiny_tokenizer(path: Path) -> Qwen2Tokenizer:
    """Bytes, and a chat template, in a model's folder."""
    tokenizer = Qwen2Tokenizer().train_new_from_iterator(["a"], 300, show_progress=False)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(path)
    return tokenizer


def without_tensors(path: Path) -> None:
    """A file of weights without any, in a model's folder."""
    save_file({}, path / "model.safetensors")


def settings_for(model_path: Path, **changes: Any) -> LearnerSettings:
    """Settings of a small trainer; ``actor`` and ``algorithm`` are merged into its own."""
    actor = {"optim": {"lr": LEARNING_RATE}, "ppo_max_token_len_per_gpu": 128, **changes.pop("actor", {})}
    engine = {"check_model": False, **changes.pop("engine", {})}  # tests of the check ask for it
    seq_len = min(128, actor["ppo_max_token_len_per_gpu"])
    return LearnerSettings.model_validate(
        {"model_path": model_path, "cpu_threads": 1, "seq_len": seq_len, "actor": actor, "engine": engine, **changes}
    )


def write_tasks(path: Path, num_tasks: int) -> None:
    """Write tasks q0, q1, ..., whose inputs are their numbers."""
    lines = (json.dumps({"id": f"q{number}", "input": number}) + "\n" for number in range(num_tasks))
    path.write_text("".join(lines))


def builder_for(settings: LearnerSettings, **arguments: Any) -> BatchBuilder:
    """A builder of batches with the estimator of the settings."""
    return BatchBuilder(settings, make_estimator(settings.algorithm), **arguments)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with tied embeddings."""
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(model_path: Path) -> Callable[..., VerlTrainer]:
    """Makes trainers; arguments are fields of the learner's settings."""
    return lambda **changes: VerlTrainer(settings_for(model_path, **changes))
