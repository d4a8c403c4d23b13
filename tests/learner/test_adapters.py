"""Adapters are called as the model's own files call what they are added to; those that no engine takes are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from lightningbus.export.lora_merge import merge_adapters
from lightningbus.inference.engine.peft import write_directory
from lightningbus.inference.engine.worker.weight_transfer import tensors
from lightningbus.learner.engine.adapters import check_targets, choose_excluded, name_as_in_files
from lightningbus.learner.model_check.adapter_probe import make_adapter_probe
from lightningbus.learner.model_check.agreement import find_tolerance, mean_difference
from lightningbus.learner.model_check.check import check_model
from lightningbus.learner.model_check.reference import ReferenceModel
from lightningbus.learner.publishing.weight_files import write_adapters
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.learner_checks import check_adapters
from lightningbus.run.preflight.model_checks import make_empty_model
from tests.families.families import FAMILIES, save_tiny_model
from tests.learner.conftest import settings_for, tiny_tokenizer

pytestmark = [pytest.mark.unit, pytest.mark.timeout(300)]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def load(path: Path, family: str) -> Any:
    auto_class: Any = AutoModelForImageTextToText if FAMILIES[family].vision else AutoModelForCausalLM
    return auto_class.from_pretrained(path, dtype=torch.float32)


@pytest.mark.parametrize(
    ("family", "targets"), [("llama", "all-linear"), ("gemma3", "all-linear"), ("qwen3_moe", ATTENTION)]
)
def test_adapters_drawn_by_chance_show_whether_they_are_there(tmp_path: Path, family: str, targets: Any) -> None:
    model = save_tiny_model(FAMILIES[family], tmp_path / "model")
    tiny_tokenizer(model)
    lora = {"lora_rank": 4, "lora_alpha": 8, "target_modules": targets}
    settings = settings_for(model, checkpoint_dir=tmp_path, engine={"check_model": True}, lora=lora)
    check = check_model(settings, "cpu")
    probe = make_adapter_probe(check)
    assert probe.is_visible and probe.effect > 4 * find_tolerance(check.rounding, num_rounded=1), (
        "an engine without them is refused"
    )
    again = make_adapter_probe(check)
    assert mean_difference(again.log_probs, probe.log_probs) == 0.0

    write_adapters(probe.tensors, probe.scale, tmp_path / "adapters")
    (weights,) = model.glob("*.safetensors")
    save_file(dict(tensors(str(weights), str(tmp_path / "adapters"))), weights)
    assert mean_difference(ReferenceModel(model).log_probs(check.rows), probe.log_probs) < 1e-5


@pytest.mark.parametrize(
    ("family", "targets"),
    [("llama", "all-linear"), ("gemma3", "all-linear"), ("mixtral", ATTENTION), ("qwen3_moe", ATTENTION)],
)
def test_adapters_are_added_to_weights_of_the_models_files(tmp_path: Path, family: str, targets: Any) -> None:
    """A node that merges them, and an export, compute what PEFT computes."""
    save_tiny_model(FAMILIES[family], tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    model = load(tmp_path, family)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False))
    check_targets(adapted)
    named = name_as_in_files(adapted.get_base_model(), get_peft_model_state_dict(adapted))
    adapters = tmp_path / "adapters"
    save_file({name: tensor.contiguous() for name, tensor in named.items()}, adapters, {"scale": "2.0"})
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits

    merged = dict(tensors(str(weights), str(adapters)))
    with safe_open(weights, "pt") as file:
        assert set(merged) == set(file.keys())
    write_directory(adapters, tmp_path / "directory", max_rank=4)
    merge_adapters(weights, tmp_path / "directory")
    with safe_open(weights, "pt") as file:
        for name, tensor in merged.items():
            torch.testing.assert_close(file.get_tensor(name), tensor)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path, family)(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "glm4_moe"])
def test_adapters_of_fused_experts_are_refused_before_the_first_step(tmp_path: Path, family: str) -> None:
    save_tiny_model(FAMILIES[family], tmp_path)
    tiny_tokenizer(tmp_path)
    settings = settings_for(tmp_path, lora={"lora_rank": 4})
    sentence = (
        r"lora.target_modules: inference engines cannot take adapters of .*model.layers.1.mlp.experts, "
        r"which are no matrices of linear layers; set it to \[k_proj, o_proj, q_proj, v_proj\]"
    )
    with pytest.raises(UserError, match=f"policy: {sentence}"):
        check_adapters(settings, make_empty_model(tmp_path)[1])
    with pytest.raises(ValueError, match=sentence):
        VerlTrainer(settings)
    allowed = settings_for(tmp_path, lora={"lora_rank": 4, "target_modules": ATTENTION})
    check_adapters(allowed, make_empty_model(tmp_path)[1])


@pytest.mark.parametrize("family", ["gemma3", "qwen3_vl", "llama"])
def test_what_reads_images_has_no_adapters(tmp_path: Path, family: str) -> None:
    """No agent's call trains them, and vLLM refuses all adapters of a file with one that it does not expect."""
    model = load(save_tiny_model(FAMILIES[family], tmp_path), family)
    excluded = choose_excluded(settings_for(tmp_path, lora={"lora_rank": 4}), model.config)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", exclude_modules=excluded))
    names = get_peft_model_state_dict(adapted).keys()
    layers = adapted.get_base_model().config.get_text_config().num_hidden_layers
    assert len(names) == 2 * 7 * layers, names  # A and B of q, k, v, o, gate, up and down in each layer
    chosen = settings_for(tmp_path, lora={"lora_rank": 4}, verl={"model": {"exclude_modules": "lm_head"}})
    assert choose_excluded(chosen, model.config) == "lm_head"
