"""The block ``engine``: verl's settings by its names, and a sentence for what cannot work here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightningbus.learner.engine import cpu_platform
from lightningbus.learner.engine.engines import make_engine
from lightningbus.learner.engine.verl_checks import check_engine
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.run.preflight.memory_check import BYTES, training_shape
from tests.learner.conftest import settings_for
from tests.learner.test_trainer import batch_of, close, conversations, gradient_of, masters, sampled_by


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ({"ulysses_sequence_parallel_size": 2, "use_remove_padding": False}, "needs use_remove_padding"),
        ({"offload_policy": True, "param_offload": True}, "leave param_offload and optimizer_offload off"),
        ({"fsdp_size": 0}, "fsdp_size must be -1 or at least 1"),
        ({"zero_stage": 3}, "zero_stage"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(model_path: Path, engine: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        settings_for(model_path, engine=engine)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"engine": {"optimizer_offload": True}}, "engine.optimizer_offload needs a GPU"),
        ({"engine": {"attn_implementation": "flash_attention_2"}}, "flash_attention_2 needs a GPU"),
        ({"engine": {"ulysses_sequence_parallel_size": 2}}, r"\(2\) must divide the number of ranks \(1\)"),
        (
            {"engine": {"ulysses_sequence_parallel_size": 2, "attn_implementation": "eager"}},
            "needs sdpa or flash-attention, not eager",
        ),
        ({"verl": {"optim": {"optimizer": "Adamm"}}}, "verl.optim.optimizer: torch.optim has no 'Adamm'"),
        (
            {"verl": {"critic_optim": {"optimizer_impl": "no_such_package.optim"}}},
            "verl.critic_optim.optimizer_impl: no_such_package.optim cannot be imported",
        ),
    ],
)
def test_settings_that_cannot_work_here_are_refused_before_a_model_is_loaded(
    start: Callable[..., VerlTrainer], changes: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        start(**changes)


def test_copies_of_a_model_divide_the_ranks(start: Callable[..., VerlTrainer], model_path: Path) -> None:
    start()  # selects verl's platform
    settings = settings_for(model_path, engine={"fsdp_size": 2})
    check_engine(settings, "cpu", 4)
    with pytest.raises(ValueError, match=r"fsdp_size \(2\) must divide the number of ranks \(3\)"):
        check_engine(settings, "cpu", 3)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"num_attention_heads": 3}, r"must divide the model's attention heads \(3\)"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "needs flash-attention for this model"),
        ({"sliding_window": 128}, "needs flash-attention for this model"),
        ({"sliding_window": 128, "use_sliding_window": False, "num_attention_heads": 4}, None),
    ],
)
def test_ranks_share_the_sequences_of_models_with_full_attention_and_enough_heads(
    tmp_path: Path, config: Any, sentence: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = settings_for(tmp_path, engine={"ulysses_sequence_parallel_size": 2})
    if sentence is None:
        check_engine(settings, "cpu", 4)
        return
    with pytest.raises(ValueError, match=sentence):
        check_engine(settings, "cpu", 4)


@pytest.mark.parametrize("part", [{"layer_types": ["linear_attention", "full_attention"]}, {"mamba_d_state": 16}])
def test_rows_of_a_model_with_a_state_are_not_packed(
    start: Callable[..., VerlTrainer], tmp_path: Path, part: Any
) -> None:
    start()  # selects verl's platform
    (tmp_path / "config.json").write_text(json.dumps(part))
    check_engine(settings_for(tmp_path, engine={"use_remove_padding": False}), "cpu", 1)
    with pytest.raises(ValueError, match="use_remove_padding must be false for this model"):
        check_engine(settings_for(tmp_path, engine={"use_remove_padding": True}), "cpu", 1)


@pytest.mark.parametrize(
    ("engine", "verl"),
    [
        ({"enable_gradient_checkpointing": True}, {"reshard_after_forward": False}),
        ({"attn_implementation": "eager"}, {"entropy_checkpointing": True}),
        ({}, {"pad_to_length": True, "pad_to_length_bucket": 256}),
        ({}, {"forward_prefetch": True, "wrap_policy": {"transformer_layer_cls_to_wrap": ["Qwen2MLP"]}}),
    ],
)
def test_ways_to_save_memory_and_time_leave_the_gradient_as_it_is(
    start: Callable[..., VerlTrainer], engine: Any, verl: Any
) -> None:
    plain = start(actor={"entropy_coeff": 0.1})
    other = start(actor={"entropy_coeff": 0.1}, engine=engine, verl={"engine": verl})
    batch = batch_of(plain, sampled_by(plain, conversations(), shift=0.5))
    (expected,), (actual,) = gradient_of(plain, batch)[1], gradient_of(other, batch)[1]
    close(actual, expected)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_is_unset_is_the_same_for_the_plan_and_for_the_engine(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """On a GPU bfloat16 with checkpointing, else neither; what is set is kept."""
    cpu_platform.select_platform()
    from verl.workers.engine import EngineRegistry

    seen: dict[str, Any] = {}

    def look(**named: Any) -> Any:
        seen.update(named)
        raise InterruptedError

    monkeypatch.setattr(EngineRegistry, "new", look)
    for engine in ({}, {"enable_gradient_checkpointing": not on_gpu, "dtype": "float16"}):
        settings = settings_for(model_path, engine=engine, weights={"dtype": "float16"} if engine else {})
        with pytest.raises(InterruptedError):
            make_engine(settings, "cuda" if on_gpu else "cpu", settings.actor.optim)
        plan = training_shape(settings, 1, on_gpu)
        assert plan.checkpointing == seen["model_config"].enable_gradient_checkpointing == (on_gpu != bool(engine))
        dtype = seen["engine_config"].mixed_precision["param_dtype"]
        assert dtype == ("float16" if engine else "bfloat16" if on_gpu else "float32")
        assert plan.compute_bytes == BYTES[dtype]


def test_bfloat16_computes_close_to_float32(start: Callable[..., VerlTrainer]) -> None:
    plain, other = start(), start(engine={"dtype": "bfloat16"}, weights={"dtype": "bfloat16"})
    batch = batch_of(plain, sampled_by(plain, conversations(), shift=0.0))
    differences = [
        item - values
        for item, values in zip(plain.log_probs(batch.sequences), other.log_probs(batch.sequences), strict=True)
    ]
    assert 0 < max(float(np.abs(part).max()) for part in differences) < 0.05
    other.step(batch)


def test_an_optimiser_is_chosen_by_name(start: Callable[..., VerlTrainer]) -> None:
    """SGD's step is the gradient times the rate, and momentum is its own argument."""
    sgd = {"optimizer": "SGD", "override_optimizer_config": {"momentum": 0.5}}
    trainer = start(actor={"optim": {"lr": 1.0, "clip_grad": 1e9}}, verl={"optim": sgd})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    _, (expected,) = gradient_of(trainer, batch)
    before = masters(trainer)
    trainer.step(batch)
    assert trainer._engine.optimizer.param_groups[0]["momentum"] == 0.5
    close({name: before[name] - part for name, part in masters(trainer).items()}, expected)


@pytest.mark.parametrize("kind", ["constant", "cosine"])
def test_a_warm_up_begins_above_zero_and_each_step_says_its_own_rate(
    start: Callable[..., VerlTrainer], kind: str
) -> None:
    trainer = start(actor={"optim": {"lr": 1e-3, "lr_warmup_steps": 2, "lr_scheduler_type": kind}})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    before = masters(trainer)
    rates = [trainer.step(batch)["actor/lr"]]
    moved = max(float((part - before[name]).abs().max()) for name, part in masters(trainer).items())
    assert moved == pytest.approx(0.5e-3, rel=0.02), "as AdamW's first step moves them"
    rates += [trainer.step(batch)["actor/lr"] for _ in range(2)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3], rel=1e-3)
