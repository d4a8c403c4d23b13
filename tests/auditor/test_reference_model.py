"""The reference model gives what transformers and PEFT give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from lightningbus.auditor.reference_model import ReferenceModel
from lightningbus.auditor.samples import AuditSample, Sampling
from lightningbus.schemas.weights.safetensors_header import WHOLE
from tests.families.families import FAMILIES, save_tiny_model

PROMPT, RESPONSE = [3, 1, 4, 1, 5], [9, 2, 6]


def make_model(path: Path, tied: bool = True) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    config.save_pretrained(path)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model.eval()


def save_weights(model: PreTrainedModel, path: Path) -> Path:
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, path)
    return path


def sample(logprobs: Any, start: int = 0, end: int = 3, sampling: Sampling | None = None) -> AuditSample:
    return AuditSample(
        run_id="r", rollout_id="a.0", execution_id="e", model="policy", call=0, engine_id="n:1", version=3,
        prompt_ids=np.array(PROMPT), response_ids=np.array(RESPONSE), logprobs=np.asarray(logprobs, np.float32),
        start=start, end=end, sampling=sampling or Sampling(),
    )  # fmt: skip


def expected(model: PreTrainedModel, temperature: float = 1.0) -> Any:
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + RESPONSE])).logits[0, len(PROMPT) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1)[range(3), RESPONSE].numpy()


@pytest.mark.parametrize("family", ["gemma2", "qwen3_moe", "mixtral", "gpt_oss", "bloom"])
def test_a_family_is_computed_as_transformers_publishes_it(tmp_path: Path, family: str) -> None:
    """Soft caps, sinks, experts by the names of files, and positions without RoPE."""
    save_tiny_model(FAMILIES[family], tmp_path)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    reference = ReferenceModel(tmp_path, "cpu")
    for _ in range(2):
        reference.load([tmp_path / WHOLE])
        assert np.abs(reference.audit(sample(expected(model.eval()))).differences).max() < 1e-5
    frozen = ReferenceModel(tmp_path, "cpu", has_weights=True)
    assert np.abs(frozen.audit(sample(expected(model))).differences).max() < 1e-5


@pytest.mark.parametrize("tied", [True, False])
def test_full_weights(tmp_path: Path, tied: bool) -> None:
    model = make_model(tmp_path, tied)
    reference = ReferenceModel(tmp_path, "cpu")
    reference.load([save_weights(model, tmp_path / "weights.safetensors")])
    tokens = reference.audit(sample(expected(model)))
    assert np.abs(tokens.differences).max() < 1e-5
    assert len(tokens.ranks) == 3 and (tokens.ranks >= 0).all() and (tokens.ranks <= 1).all()


def test_a_part_of_an_answer_at_another_temperature(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    reference = ReferenceModel(tmp_path, "cpu")
    reference.load([save_weights(model, tmp_path / "weights.safetensors")])
    tokens = reference.audit(sample(expected(model, 0.5), 1, 2, Sampling(temperature=0.5)))
    assert len(tokens.differences) == 1 and abs(tokens.differences[0]) < 1e-5
    assert abs(reference.audit(sample(expected(model, 1.0), 1, 2, Sampling(temperature=0.5))).differences[0]) > 1e-3
    assert len(reference.audit(sample(expected(model), sampling=Sampling(temperature=0.0))).ranks) == 0


def test_adapters_are_added_as_peft_adds_them(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model = make_model(tmp_path)
    base = save_weights(model, tmp_path / "base.safetensors")
    adapted: Any = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    tensors = {
        name.replace(".default", ""): tensor.contiguous()
        for name, tensor in adapted.state_dict().items()
        if "lora_" in name
    }
    save_file(tensors, tmp_path / "adapters.safetensors", {"scale": "2.0"})
    reference = ReferenceModel(tmp_path, "cpu")
    reference.load([base, tmp_path / "adapters.safetensors"])
    assert np.abs(reference.audit(sample(expected(adapted.eval()))).differences).max() < 1e-5


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    save_file({"other.weight": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="do not fit"):
        ReferenceModel(tmp_path, "cpu").load([tmp_path / "weights.safetensors"])


def test_tokens_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    wrong = sample([0.0] * 3)
    wrong.response_ids[1] = 99
    with pytest.raises(ValueError, match="99"):
        ReferenceModel(tmp_path, "cpu").audit(wrong)
