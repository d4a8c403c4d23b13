"""The policy that is trained is the policy that is served, at the formats of versions and at any learning rate."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lightningbus.export.lora_merge import merge_adapters
from lightningbus.inference.engine.peft import CONFIG, WEIGHTS
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.schemas.weights.dtypes import DTYPES
from tests.learner.conftest import settings_for, tiny_model
from tests.learner.test_trainer import batch_of, conversations, gradient_of, masters, sampled_by

RATES = (1e-6, 1e-5, 1e-4)
MAX_DIFFERENCE = 2e-5
"""Nats; two computations of the same float32 weights differ by less."""


def model_in(dtype: str, path: Path) -> Path:
    """Weights of the size that trained ones have: a step of 1e-6 is rounded away in most of their elements."""
    return tiny_model(path, dtype=dtype, initializer_range=0.1, hidden_size=128, vocab_size=512)


def served_log_probs(model_path: Path, weights: Path, rows: list[Any]) -> list[Any]:
    """Compute what an engine computes in float32 at the weights of a version, by transformers."""
    node = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tensors = {name: part.float() for name, part in load_file(weights).items()}
    assert not node.load_state_dict(tensors, strict=False).unexpected_keys
    values = []
    for row in rows:
        tokens = torch.from_numpy(row.token_ids)
        with torch.no_grad():
            every = torch.log_softmax(node(input_ids=tokens[None]).logits[0], -1)
        values.append(np.append(0.0, every[:-1].gather(1, tokens[1:, None])[:, 0].numpy()))
    return values


def largest_difference(trainer: VerlTrainer, model_path: Path, weights: Path, rows: list[Any]) -> float:
    """Compare the learner with what a version serves."""
    pairs = zip(rows, trainer.log_probs(rows), served_log_probs(model_path, weights, rows), strict=True)
    return max(float(np.abs(now - served)[row.trained].max()) for row, now, served in pairs)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("stored", DTYPES)
def test_the_learner_computes_at_the_weights_of_its_version(tmp_path: Path, stored: str, rate: float) -> None:
    """Also after many steps that are smaller than the spacing of the format; the optimiser's own weights all move."""
    model_path = model_in(stored, tmp_path / "model")
    trainer = VerlTrainer(settings_for(model_path, actor={"optim": {"lr": rate}}))
    rows = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0)).sequences
    before = masters(trainer)
    for step in range(1, 11):
        trainer.step(batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0)))
        if step in (1, 10):
            trainer.write_weights(tmp_path / "weights")
            assert largest_difference(trainer, model_path, tmp_path / "weights", rows) < MAX_DIFFERENCE
    moved = [float((part != before[name]).float().mean()) for name, part in masters(trainer).items()]
    assert np.mean(moved) > 0.9


@pytest.mark.parametrize("served", ["bfloat16", "float16"])
def test_float32_files_are_trained_at_what_a_16_bit_engine_serves(tmp_path: Path, served: str) -> None:
    model_path = model_in("float32", tmp_path / "model")
    trainer = VerlTrainer(settings_for(model_path, weights={"dtype": served}, actor={"optim": {"lr": 1e-4}}))
    rows = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0)).sequences
    trainer.step(batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0)))
    trainer.write_weights(tmp_path / "weights")
    assert {str(part.dtype) for part in load_file(tmp_path / "weights").values()} == {f"torch.{served}"}
    assert largest_difference(trainer, model_path, tmp_path / "weights", rows) < MAX_DIFFERENCE


def test_merged_adapters_are_trained_as_nodes_merge_them(tmp_path: Path) -> None:
    """Most elements of a merged weight round to the base's; without merging the learner would train another policy."""
    model_path = model_in("bfloat16", tmp_path / "model")
    trainer = VerlTrainer(settings_for(model_path, lora={"lora_rank": 4}, actor={"optim": {"lr": 1e-3}}))
    rows = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0)).sequences
    for _ in range(3):
        trainer.step(batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0)))
    trainer.write_weights(tmp_path / "weights")
    adapters = trainer.adapters()
    assert adapters is not None
    (tmp_path / "adapters").mkdir()
    save_file(adapters[0], tmp_path / "adapters" / WEIGHTS)
    (tmp_path / "adapters" / CONFIG).write_text(json.dumps({"lora_alpha": 4 * adapters[1], "r": 4}))
    base = served_log_probs(model_path, tmp_path / "weights", rows)
    merge_adapters(tmp_path / "weights", tmp_path / "adapters")
    assert largest_difference(trainer, model_path, tmp_path / "weights", rows) < MAX_DIFFERENCE
    now = trainer.log_probs(rows)
    assert max(np.abs(merged - plain).max() for merged, plain in zip(now, base, strict=True)) > 100 * MAX_DIFFERENCE


def test_gradients_reach_merged_adapters(tmp_path: Path) -> None:
    """They are those of float32 versions, but for the rounding of the weights."""
    gradients = []
    for dtype in ("float32", "bfloat16"):
        model_path = model_in("float32", tmp_path / dtype)
        settings = settings_for(model_path, lora={"lora_rank": 4}, weights={"dtype": dtype})
        trainer = VerlTrainer(settings)
        _, (gradient,) = gradient_of(trainer, batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0)))
        gradients.append(torch.cat([part.flatten() for name, part in gradient.items() if "lora_B" in name]))
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.98
