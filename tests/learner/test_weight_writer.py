"""Versions are published in the precision that nodes serve, tensor by tensor; the learner itself keeps float32."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import FileSystemReader

from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.schemas.weights.delta import encode_delta
from tests.learner.conftest import settings_for, tiny_model
from tests.learner.test_trainer import batch_of, conversations, masters, sampled_by

RATE = 1e-6


@pytest.fixture
def bf16_model(tmp_path: Path) -> Path:
    """Weights of the size that trained ones have: of small ones a step of 1e-6 changes more."""
    return tiny_model(tmp_path / "model", dtype="bfloat16", initializer_range=0.1, hidden_size=256, vocab_size=4096)


def test_of_a_bf16_model_a_step_is_published_in_a_fiftieth_of_the_bytes(bf16_model: Path, tmp_path: Path) -> None:
    """In bfloat16 most of its elements round to what they were; in the checkpoint every element has moved."""
    trainer = VerlTrainer(settings_for(bf16_model, actor={"optim": {"lr": RATE}}))
    before = masters(trainer)
    trainer.write_weights(tmp_path / "0")
    trainer.step(batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5)))
    trainer.write_weights(tmp_path / "1")
    size = (tmp_path / "1").stat().st_size
    assert encode_delta(tmp_path / "0", tmp_path / "1", tmp_path / "delta", size)
    assert (tmp_path / "delta").stat().st_size <= 0.02 * size
    after, published = masters(trainer), load_file(tmp_path / "1")
    with safe_open(tmp_path / "1", "pt") as file:
        assert file.metadata() == {"format": "pt"}, "transformers 4 loads no other"
    for name, part in after.items():
        assert part.dtype == torch.float32 and torch.equal(part.bfloat16(), published[name])
    assert any(not torch.equal(part, before[name]) for name, part in after.items())
    trainer.save(tmp_path / "checkpoint")
    saved = FileSystemReader(tmp_path / "checkpoint").read_metadata().state_dict_metadata
    assert {entry.properties.dtype for name, entry in saved.items() if name.startswith("model.")} == {torch.float32}


def test_a_tensor_that_a_models_files_keep_in_float32_is_published_so(bf16_model: Path, tmp_path: Path) -> None:
    file = bf16_model / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"].float()}, file, {"format": "pt"})
    trainer = VerlTrainer(settings_for(bf16_model))
    trainer.write_weights(tmp_path / "weights")
    published = load_file(tmp_path / "weights")
    assert {name for name, part in published.items() if part.dtype == torch.float32} == {"model.norm.weight"}
    assert published.keys() == tensors.keys()
    wide = VerlTrainer(settings_for(bf16_model, weights={"dtype": "float32"}))
    wide.write_weights(tmp_path / "weights")
    assert {part.dtype for part in load_file(tmp_path / "weights").values()} == {torch.float32}


@pytest.mark.integration
@pytest.mark.long
def test_of_two_ranks_none_holds_more_than_a_tensor_of_the_weights_it_publishes(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", num_hidden_layers=12)
    script = Path(__file__).with_name("gathered.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(model), str(tmp_path / "seen")], env=quiet, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads((tmp_path / "seen").read_text())
    assert 0 < seen["peak"] <= 4 * seen["largest"] < seen["all"] / 4, seen
    for version in range(2):
        published, first = load_file(tmp_path / f"{version}.safetensors"), load_file(model / "model.safetensors")
        assert published.keys() == first.keys()
        assert all(torch.equal(part, first[name]) for name, part in published.items())
