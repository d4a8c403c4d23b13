"""A model is computed as transformers publishes it, or refused before the first step; faults put in on purpose."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightningbus.learner.engine import engines, packed_attention
from lightningbus.learner.model_check import check
from lightningbus.learner.model_check.agreement import (
    MAX_DIFFERENCE,
    find_engine_tolerance,
    find_log_prob_fault,
    find_tolerance,
    mean_difference,
)
from lightningbus.learner.model_check.check import (
    COMPUTATIONS,
    ModelCheckError,
    _Differences,
    as_model_check_error,
    check_model,
)
from lightningbus.learner.model_check.computation_file import FILE
from lightningbus.learner.model_check.memory import find_shortage
from lightningbus.learner.model_check.model_files import find_missing_tensors
from lightningbus.learner.model_check.probe import LENGTHS, LONG, NUM_LONG_TOKENS, make_long_probe, make_short_probe
from lightningbus.learner.model_check.reference import EAGER, SDPA, ReferenceModel
from lightningbus.learner.publishing.canary_prompts import NUM_LATER_ROWS
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.schemas.weights.safetensors_header import PYTORCH, WHOLE
from tests.families.__main__ import RESULTS
from tests.families.families import FAMILIES, SIZES, Family, save_tiny_model
from tests.families.page import is_tested
from tests.learner.computation_faults import FAULTS, make_faulty, scale_logits
from tests.learner.conftest import settings_for, tiny_tokenizer

pytestmark = pytest.mark.timeout(300)
Save = Callable[..., Path]
OFTEN = ("llama", "gemma3_text", "qwen3_moe")
"""Families whose false alarms are looked for in each run of the tests."""


def right_families() -> list[str]:
    """Return the families that learner and engine compute right."""
    return [name for name, item in json.loads(RESULTS.read_text()).items() if is_tested(item)]


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Saves a family's tiny model, with a tokenizer, once."""
    saved: dict[tuple[str, int], Path] = {}

    def save(name: str, seed: int = 0) -> Path:
        if (name, seed) not in saved:
            saved[name, seed] = save_tiny_model(FAMILIES[name], tmp_path_factory.mktemp(name), seed)
            tiny_tokenizer(saved[name, seed])
        return saved[name, seed]

    return save


def trainer_for(model: Path, tmp_path: Path, **engine: Any) -> VerlTrainer:
    return VerlTrainer(settings_for(model, checkpoint_dir=tmp_path, engine={"check_model": True, **engine}))


@pytest.mark.parametrize(
    ("family", "attention", "is_packed"),
    [
        ("llama", SDPA, True),
        ("gemma2", EAGER, False),  # sdpa has no soft-capping
        ("gpt_oss", EAGER, False),  # it has no sdpa, and its packed rows see each other
        ("afmoe", SDPA, False),
        ("nemotron", SDPA, True),  # a class with attentions of its own
        ("bloom", EAGER, False),
        ("gpt_neox", SDPA, True),  # no num_key_value_heads
        ("gpt2", SDPA, True),  # no ForCausalLM
        ("lfm2", SDPA, False),
        ("qwen3_vl", SDPA, True),
    ],
)
def test_a_family_is_computed_in_the_first_way_that_is_right(
    save: Save, tmp_path: Path, family: str, attention: str, is_packed: bool
) -> None:
    trainer = trainer_for(save(family), tmp_path)
    engine = trainer._settings.engine
    assert (engine.attn_implementation, engine.use_remove_padding) == (attention, is_packed)
    probe = trainer.check_model()
    assert probe is not None and [len(row.token_ids) for row in probe.rows[: len(LENGTHS)]] == list(LENGTHS)


@pytest.mark.parametrize(
    ("family", "engine", "right"),
    [
        ("gemma2", {"attn_implementation": "sdpa"}, "attn_implementation: eager with engine.use_remove_padding: false"),
        ("afmoe", {"use_remove_padding": True}, "attn_implementation: sdpa with engine.use_remove_padding: false"),
    ],
)
def test_a_setting_that_computes_a_model_wrong_is_refused_with_the_right_one(
    save: Save, tmp_path: Path, family: str, engine: dict[str, Any], right: str
) -> None:
    with pytest.raises(ModelCheckError, match=f"would be trained wrong.* nats per token off. set .*{right}"):
        trainer_for(save(family), tmp_path, **engine)


def _scale_attention(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 2


def _change_rope(model: Any) -> None:
    frequencies = model.model.rotary_emb.inv_freq
    frequencies.copy_(frequencies**1.2)


def _forget_layer(model: Any) -> None:
    model.model.layers[1].mlp.up_proj.weight.data.normal_(0, 0.08)


def _keep_old_head(model: Any) -> None:
    model.lm_head.weight.data.normal_(0, 0.08)


@pytest.mark.parametrize("break_model", [_scale_attention, _change_rope, _forget_layer, _keep_old_head])
def test_a_learner_that_computes_something_else_is_refused(
    save: Save, tmp_path: Path, break_model: Callable[[Any], None]
) -> None:
    trainer = trainer_for(save("llama"), tmp_path)
    with torch.no_grad():
        break_model(trainer._engine.module)
    with pytest.raises(ModelCheckError, match="log-probabilities differ by"):
        trainer.check_model()
    assert not (tmp_path / FILE).exists()


def test_packed_rows_that_see_each_other_are_refused_or_padded(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention over all packed tokens, as of a mask that was made without their positions."""

    def one_row(batch_size: int, q_length: int, *arguments: Any, **named: Any) -> Any:
        return torch.tensor([q_length])

    monkeypatch.setattr(packed_attention, "find_rows", one_row)
    assert trainer_for(save("llama"), tmp_path)._settings.engine.use_remove_padding is False
    with pytest.raises(ModelCheckError, match="use_remove_padding: false"):
        trainer_for(save("llama"), tmp_path, use_remove_padding=True, attn_implementation=SDPA)


LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
LONG_ROWS = {"ppo_max_token_len_per_gpu": 1024}
LENGTHY = [
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}, 512),
    ("phi3", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 256, "sliding_window": None}, 256),
]
"""A family, changes to its configuration, and the length beyond which rows cannot be computed together."""


@pytest.mark.parametrize(("family", "changes", "length"), LENGTHY)
def test_a_length_that_no_probe_reaches_bounds_rows_that_are_computed_together(
    tmp_path: Path, family: str, changes: dict[str, Any], length: int
) -> None:
    model = save_tiny_model(Family(family, {"max_position_embeddings": 512, **changes}), tmp_path / "model")
    tiny_tokenizer(model)
    fields: dict[str, Any] = {"checkpoint_dir": tmp_path, "engine": {"check_model": True}, "actor": LONG_ROWS}
    assert check_model(settings_for(model, seq_len=length, **fields), "cpu").log_probs is not None
    with pytest.raises(ModelCheckError, match=f"up to {length} tokens, .* not beyond. Set seq_len: {length}"):
        check_model(settings_for(model, seq_len=length + 1, **fields), "cpu")


def test_chunks_are_never_packed(tmp_path: Path) -> None:
    config = {"attention_chunk_size": 256, "floor_scale": 64, "num_local_experts": 2, "intermediate_size_mlp": 256}
    model = save_tiny_model(Family("llama4_text", config), tmp_path / "model")
    tiny_tokenizer(model)
    fields: dict[str, Any] = {"checkpoint_dir": tmp_path, "engine": {"check_model": True}, "actor": LONG_ROWS}
    settings = check_model(settings_for(model, seq_len=512, **fields), "cpu").settings
    assert settings.engine.use_remove_padding is False


@pytest.mark.parametrize("fault", FAULTS)
def test_an_engine_in_float32_shows_a_fault_that_rounding_hides(save: Save, fault: str) -> None:
    reference, faulty = ReferenceModel(save("llama")), ReferenceModel(save("llama"))
    rows = make_long_probe(save("llama"), SIZES["vocab_size"], max_tokens=128)
    right = reference.log_probs(rows)
    rounding = mean_difference(reference.rounded_log_probs(rows), right)
    make_faulty(faulty, FAULTS[fault])
    assert mean_difference(faulty.log_probs(rows), right) > find_engine_tolerance(rounding)


@pytest.mark.parametrize("scale", [0.98, 1.02])
def test_a_temperature_is_found_below_rounding(save: Save, scale: float) -> None:
    rows = make_long_probe(save("llama"), SIZES["vocab_size"], max_tokens=128)
    right = ReferenceModel(save("llama")).log_probs(rows)
    faulty = ReferenceModel(save("llama"))
    make_faulty(faulty, lambda model: scale_logits(model, scale))
    bound = find_tolerance(mean_difference(faulty.rounded_log_probs(rows), right), num_rounded=1)
    fault = find_log_prob_fault(faulty.log_probs(rows), right, rows, bound)
    assert fault.startswith("are scaled by ")
    assert float(fault.rpartition(" ")[2]) == pytest.approx(scale, abs=0.005)


@pytest.mark.parametrize(
    ("seq_len", "lengths", "longest"),
    [
        (128, (), 128),
        (4096, (), LONG),
        (4096, (512, 1024), 1024 + LENGTHS[0]),
        (1030, (512, 1024), 1030),
        (1024, (1024,), LONG),
        (20_000, (1024, 8192), 1024 + LENGTHS[0]),
    ],
)
def test_a_row_exceeds_the_lengths_of_a_configuration(
    save: Save, seq_len: int, lengths: tuple[int, ...], longest: int
) -> None:
    """Rows of ``seq_len`` may exceed them; beyond `MAX_LENGTH` a forward pass costs too much."""
    rows = make_long_probe(save("llama"), SIZES["vocab_size"], seq_len, lengths)
    assert max(len(row.token_ids) for row in rows) == longest
    assert sum(len(row.token_ids) for row in rows) >= NUM_LONG_TOKENS


@pytest.mark.parametrize("error", [RuntimeError("a kernel"), Exception("no sequence"), ImportError("mamba_ssm")])
def test_what_a_model_raises_is_a_sentence_with_its_kind(save: Save, tmp_path: Path, error: Exception) -> None:
    with pytest.raises(ModelCheckError) as refused, as_model_check_error(save("llama")):
        raise error
    words = f"verl cannot train models of the kind 'llama' ({save('llama')}): {type(error).__name__}: {error}. Take"
    assert str(refused.value).startswith(words)
    model = tmp_path / "model"
    shutil.copytree(save("llama"), model)
    config = json.loads((model / "config.json").read_text()) | {"model_type": "unheard_of"}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelCheckError, match="transformers cannot train models of the kind 'unheard_of'"):
        check_model(settings_for(model, checkpoint_dir=tmp_path, engine={"check_model": True}), "cpu")


LACKING = [
    ("llama", "model.norm.weight", ()),
    ("qwen3", "model.layers.1.self_attn.k_norm.weight", ()),
    ("qwen2", "model.layers.0.self_attn.q_proj.bias", ()),
    ("glm4_moe", "model.layers.1.mlp.gate.e_score_correction_bias", ()),
    ("mixtral", "model.layers.0.block_sparse_moe.experts.3.w1.weight", ()),
    ("qwen3_moe", "model.layers.1.mlp.experts.3.", ("down_proj.weight", "gate_proj.weight", "up_proj.weight")),
    ("gpt_oss", "model.layers.1.self_attn.sinks", ()),
    ("llama", "lm_head.weight", ()),
]
"""A family, and the tensors that are taken out of its file: one name, or the endings of several."""


@pytest.mark.parametrize(("family", "name", "endings"), LACKING)
def test_a_file_that_lacks_a_tensor_is_refused_and_names_it(
    save: Save, tmp_path: Path, family: str, name: str, endings: tuple[str, ...]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(save(family), model)
    tensors = load_file(model / WHOLE)
    lacking = [name + ending for ending in endings or ("",)]
    save_file({key: tensor for key, tensor in tensors.items() if key not in lacking}, model / WHOLE, PYTORCH)
    with pytest.raises(ModelCheckError) as refused:
        trainer_for(model, tmp_path / "checkpoints")
    assert str(refused.value).startswith(f"{model} lacks tensors that its config.json asks for: {', '.join(lacking)}.")


def test_dropout_is_off_in_training_and_noticed_when_it_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(0)
    model = tmp_path / "model"
    GraniteForCausalLM(GraniteConfig(**{**SIZES, "attention_dropout": 0.1})).save_pretrained(model)
    tiny_tokenizer(model)
    trainer_for(model, tmp_path).check_model()
    (tmp_path / FILE).unlink()
    monkeypatch.setattr(engines, "without_noise", lambda config: {})
    with pytest.raises(ModelCheckError, match="log-probabilities differ by"):
        trainer_for(model, tmp_path).check_model()


def test_a_family_that_verl_cannot_train_is_refused_in_a_sentence(save: Save, tmp_path: Path) -> None:
    with pytest.raises(ModelCheckError, match=r"would be trained wrong|verl cannot train models of the kind 'phimoe'"):
        trainer_for(save("phimoe"), tmp_path).check_model()  # it samples its experts in training
    with pytest.raises(ModelCheckError, match="kind 'qwen2_5_vl' on images alone"):
        check_model(settings_for(save("qwen2_5_vl"), checkpoint_dir=tmp_path, engine={"check_model": True}), "cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_complete_file_lacks_no_tensor(save: Save, family: str) -> None:
    assert family == "qwen2_5_vl" or find_missing_tensors(save(family)) == []


@pytest.mark.parametrize(
    "family",
    [family if family in OFTEN else pytest.param(family, marks=pytest.mark.long) for family in right_families()],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_right_family_raises_no_alarm(save: Save, family: str, seed: int) -> None:
    """The computation that a learner chooses is far within its bound in float32, and in bfloat16, as on a GPU."""
    model = save(family, seed)
    reference = ReferenceModel(model)
    short = make_short_probe(model, SIZES["vocab_size"], max_tokens=128)
    differences = _Differences(reference, short, reference.log_probs(short))
    computation = next(differences.find_right(COMPUTATIONS))
    assert differences[computation] < 0.5 * MAX_DIFFERENCE
    rows = short + make_long_probe(model, SIZES["vocab_size"], max_tokens=128)
    right = reference.log_probs(rows)
    rounded = reference.rounded_log_probs(rows)
    reference.compute(short, computation)
    reference._model.to(torch.bfloat16)  # a class that chooses its attention as it is made was loaded anew
    computed = reference.compute(rows, computation)
    for part in (slice(None), slice(NUM_LATER_ROWS)):
        rounding = mean_difference(rounded[part], right[part])
        assert 0 < mean_difference(computed[part], right[part]) < 1.2 * rounding
        assert (
            find_log_prob_fault(computed[part], right[part], rows[part], find_tolerance(rounding, num_rounded=1)) == ""
        )


def test_a_learner_that_goes_on_is_not_checked_again(save: Save, tmp_path: Path) -> None:
    trainer = trainer_for(save("gemma2"), tmp_path)
    probe = trainer.check_model()
    again = check_model(settings_for(save("gemma2"), checkpoint_dir=tmp_path, engine={"check_model": True}), "cpu")
    assert again.log_probs is None, "the reference was not computed"
    known = again.make_probe(is_exact=True)
    assert probe is not None and known is not None
    assert (known.roundings, len(known.rows)) == (probe.roundings, len(probe.rows))
    engine = again.settings.engine
    assert (engine.attn_implementation, engine.use_remove_padding) == (EAGER, False)
    other = settings_for(save("llama"), checkpoint_dir=tmp_path, engine={"check_model": True})
    assert check_model(other, "cpu").log_probs is not None, "another model is"


def test_a_model_that_does_not_fit_into_memory_is_trained_unchecked(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 16384 kB\nMemAvailable: 1024 kB\n")
    assert find_shortage(save("llama")) == ""
    shortage = find_shortage(save("llama"), tmp_path / "meminfo")
    assert shortage == "it takes 0.0 GiB in float32, of which 0.0 GiB are available"
    monkeypatch.setattr(check, "find_shortage", lambda path: shortage)
    assert trainer_for(save("llama"), tmp_path).check_model() is None
    assert "is not compared with transformers' own: it takes" in caplog.text
