"""verl's engine on a tiny Qwen2: its gradient is a slow and plain reference's, however the work is cut."""

import json
import math
import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.sequences import SequenceConfig, build_sequences
from lightningbus.learner.transitions.transitions import build_transitions
from tests.factories import group, model_call, rollout
from tests.learner.conftest import LEARNING_RATE, builder_for, settings_for
from tests.learner.reference import Named, Rule, gradient, mean_entropy

Start = Callable[..., VerlTrainer]
ROOT = Path(__file__).resolve().parents[2]


def conversations(seed: int = 0, count: int = 8) -> list[Rollout]:
    """Rollouts of one to four calls, some extending others, some alone, each of its own length."""
    rng = np.random.default_rng(seed)
    built = []
    for number in range(count):
        calls: list[Any] = []
        context: list[int] = []
        for index in range(int(rng.integers(1, 5))):
            new = rng.integers(1, 64, rng.integers(2, 6)).tolist()  # not token 0: the tokenizer's padding
            prompt = context + new if rng.random() < 0.7 else new
            response = rng.integers(1, 64, rng.integers(2, 7)).tolist()
            calls.append(model_call(index, prompt, response))
            context = prompt + response
        task = f"task{number // 4}"
        built.append(rollout(task, number % 4, float(number % 3 == 0), calls=calls))
    return built


def sampled_by(trainer: VerlTrainer, rollouts: Sequence[Rollout], shift: float) -> list[Rollout]:
    """The rollouts as if the current weights had sampled them, each log-probability moved by up to ``shift``."""
    rng = np.random.default_rng(1)
    built = []
    for item in rollouts:
        rows, _ = build_sequences(
            item.id, build_transitions(item.calls), SequenceConfig(mode="transition", max_tokens=128)
        )
        calls = []
        for call, row, logprobs in zip(item.calls, rows, trainer.log_probs(rows), strict=True):
            moved = logprobs[row.trained] + rng.uniform(-shift, shift, row.num_tokens)
            calls.append(replace(call, logprobs=array("f", moved).tobytes()))
        built.append(changed(item, calls=tuple(calls)))
    return built


def batch_of(trainer: VerlTrainer, rollouts: Sequence[Rollout]) -> Batch:
    """The training batch of rollouts, by the trainer's settings."""
    groups = [group(task, *[item for item in rollouts if item.task_id == task]) for task in ("task0", "task1")]
    return builder_for(trainer._settings).build(groups, 0)


def gradient_of(trainer: VerlTrainer, batch: Batch) -> tuple[dict[str, float], list[Named]]:
    """Metrics of a step that changes nothing, and the gradient of each optimiser step in it."""
    seen: list[Named] = []
    engine = trainer._engine

    def look() -> float:
        seen.append({name: whole(part.grad) for name, part in engine.module.named_parameters()})
        return 0.0

    engine.optimizer_step = look
    try:
        return trainer.step(batch), seen
    finally:
        del engine.optimizer_step


def whole(tensor: Any) -> torch.Tensor:
    """All of a tensor that may be spread over ranks."""
    actual = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return actual.detach().clone() if actual is not None else torch.zeros(())


def masters(trainer: VerlTrainer) -> Named:
    """What the optimiser moves, in float32."""
    return {name: whole(part) for name, part in trainer._engine.module.named_parameters()}


def close(named: Named, other: Named) -> None:
    """Equal but for the rounding of float32 sums."""
    largest = max(float(part.abs().max()) for part in other.values())
    for name, part in other.items():
        torch.testing.assert_close(named[name], part, atol=2e-6 * largest, rtol=2e-4)


RULES = {
    "PPO against the sampling policy": Rule(),
    "PPO, decoupled, truncated weights": Rule(bypass=False),
    "per rollout sums": Rule(agg="seq-mean-token-sum"),
    "per token": Rule(agg="token-mean"),
    "KL and entropy": Rule(kl=0.1, entropy=0.05),
    "gspo": Rule(loss="gspo"),
    "cispo": Rule(loss="cispo"),
    "gpg": Rule(loss="gpg"),
    "dppo_tv": Rule(loss="dppo_tv"),
    "sapo": Rule(loss="sapo"),
    "geo_mean": Rule(loss="geo_mean"),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_gradient_is_the_plain_references_however_the_work_is_cut(start: Start, model_path: Path, rule: Rule) -> None:
    """Rows per call or merged, in any order, in one micro-batch or many, packed or padded."""
    actor = {
        "policy_loss": rule.loss,
        "loss_agg_mode": rule.agg,
        "use_kl_loss": rule.kl > 0,
        "kl_loss_coef": rule.kl,
        "entropy_coeff": rule.entropy,
    }
    trainer = start(actor=actor, algorithm={"rollout_correction": {"bypass_mode": rule.bypass}})
    rollouts = sampled_by(trainer, conversations(), shift=0.9)  # some ratios are clipped, some weights truncated
    batch = batch_of(trainer, rollouts)
    expected_loss, expected = gradient(model_path, rollouts, batch.advantages, rule)
    for cut in (
        {"sequence_mode": "trajectory"},
        {"sequence_mode": "transition"},
        {"sequence_mode": "trajectory", "actor": {**actor, "ppo_max_token_len_per_gpu": 64}},
        {"sequence_mode": "trajectory", "engine": {"use_remove_padding": False}},
    ):
        merged = {"actor": actor, "algorithm": {"rollout_correction": {"bypass_mode": rule.bypass}}, **cut}
        trainer._settings = settings_for(model_path, **merged)
        work = {
            "max_tokens": trainer._settings.actor.ppo_max_token_len_per_gpu,
            "is_packed": trainer._settings.engine.use_remove_padding,
        }
        trainer._forward, trainer._train = changed(trainer._forward, **work), changed(trainer._train, **work)
        batch = batch_of(trainer, rollouts)
        order = np.random.default_rng(2).permutation(len(batch.sequences))
        shuffled = changed(batch, sequences=[batch.sequences[place] for place in order])
        metrics, (actual,) = gradient_of(trainer, shuffled)
        assert metrics["actor/loss"] == pytest.approx(expected_loss, rel=1e-4, abs=1e-6)
        close(actual, {name: part for name, part in expected.items() if name in actual})


@pytest.mark.parametrize("agg", ["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"])
@pytest.mark.parametrize("rows", ["trajectory", "transition"])
def test_a_step_without_an_entropy_bonus_stores_the_entropy(
    start: Start, model_path: Path, agg: str, rows: str
) -> None:
    """In nats per sampled token, before the update, and the bonus adds no second meaning to it."""
    rollouts = sampled_by(start(), conversations(), shift=0.5)
    expected = mean_entropy(model_path, rollouts, agg)
    for coeff in (0.0, 0.1):
        trainer = start(sequence_mode=rows, actor={"loss_agg_mode": agg, "entropy_coeff": coeff})
        metrics = trainer.step(batch_of(trainer, rollouts))
        assert metrics["actor/entropy"] == pytest.approx(expected, rel=1e-5)
        assert ("actor/entropy_loss" in metrics) == (coeff > 0)


def test_the_entropy_of_chunks_and_its_gradient_are_those_of_the_whole(start: Start) -> None:
    """verl chunks 2048 tokens at a time."""
    from verl.utils import torch_functional

    start(actor={"entropy_coeff": 0.1})  # which lets verl's engine compute it in chunks
    logits = torch.randn(3, 1100, 7, requires_grad=True)
    weights = torch.rand(3, 1100)
    entropy = torch_functional.entropy_from_logits(logits)
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(entropy, expected)
    (actual_gradient,) = torch.autograd.grad((entropy * weights).sum(), logits)
    (gradient,) = torch.autograd.grad((expected * weights).sum(), logits)
    torch.testing.assert_close(actual_gradient, gradient)


def test_a_users_own_loss_is_found_by_its_import_path(
    start: Start, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is written as the plain reference's PPO has its gradient; what is wrong is refused with a sentence."""
    module: Any = ModuleType("mine")

    def ppo(log_prob: Any, old_log_prob: Any, advantages: Any, mask: Any, actor: Any) -> Any:
        ratio = torch.exp(log_prob - old_log_prob)
        clipped = ratio.clamp(1 - actor.clip_ratio_low, 1 + actor.clip_ratio_high)
        loss = torch.maximum(-advantages * ratio, -advantages * clipped)
        bound = -advantages * actor.policy_loss_options["dual"]
        return torch.where(advantages < 0, torch.minimum(loss, bound), loss)

    module.ppo, module.total = ppo, lambda *arguments: ppo(*arguments).sum()
    monkeypatch.setitem(sys.modules, "mine", module)
    trainer = start(actor={"policy_loss": "mine:ppo", "policy_loss_options": {"dual": 3.0}})
    rollouts = sampled_by(trainer, conversations(), shift=0.9)
    batch = batch_of(trainer, rollouts)
    expected_loss, expected = gradient(model_path, rollouts, batch.advantages, Rule())
    metrics, (actual,) = gradient_of(trainer, batch)
    assert metrics["actor/loss"] == pytest.approx(expected_loss, rel=1e-4, abs=1e-6)
    close(actual, {name: part for name, part in expected.items() if name in actual})
    with pytest.raises(ValueError, match=r"mine:total returned a tensor of \(\), not of .*: a loss per token"):
        start(actor={"policy_loss": "mine:total", "policy_loss_options": {"dual": 3.0}}).step(batch)
    with pytest.raises(ValueError, match="policy_loss: 'mine:no' cannot be imported"):
        start(actor={"policy_loss": "mine:no"})


def test_mini_batches_add_up_to_thewhole(start: Start, model_path: Path) -> None:
    """At the same weights the gradients of mini-batches, weighed by their rollouts, are that of the batch."""
    trainer = start()
    rollouts = sampled_by(trainer, conversations(), shift=0.5)
    batch = batch_of(trainer, rollouts)
    _, (whole,) = gradient_of(trainer, batch)
    trainer._settings = settings_for(model_path, actor={"ppo_mini_batch_size": 1})
    _, parts = gradient_of(trainer, batch)
    assert len(parts) == 2
    close({name: (parts[0][name] + parts[1][name]) / 2 for name in whole}, whole)


def test_accumulated_gradients_and_a_step_move_the_weights_as_adamw_does(start: Start, model_path: Path) -> None:
    trainer = start()
    rollouts = sampled_by(trainer, conversations(), shift=0.5)
    batch = batch_of(trainer, rollouts)
    _, expected = gradient(model_path, rollouts, batch.advantages, Rule())
    before = masters(trainer)
    trainer.step(batch)
    after = masters(trainer)
    largest = max(float(part.abs().max()) for part in expected.values())
    for name, part in expected.items():
        # AdamW's first step is the sign of the gradient, where that is more than rounding.
        sure = part.abs() > 1e-4 * largest
        moved = (after[name] - before[name])[sure]
        torch.testing.assert_close(moved, -LEARNING_RATE * part.sign()[sure], atol=0.02 * LEARNING_RATE, rtol=0)


@pytest.mark.integration
@pytest.mark.parametrize(
    "engine",
    [
        {},
        pytest.param({"use_remove_padding": False}, marks=pytest.mark.long),
        pytest.param({"fsdp_size": 1, "enable_gradient_checkpointing": True}, marks=pytest.mark.long),
        pytest.param({"ulysses_sequence_parallel_size": 2}, marks=pytest.mark.long),
        pytest.param({"share_prefixes": True}, marks=pytest.mark.long),
    ],
    ids=["packed", "padded", "a copy each", "sharing sequences", "sharing prompts"],
)
def test_two_ranks_make_the_update_of_one(model_path: Path, tmp_path: Path, engine: dict[str, Any]) -> None:
    """torchrun over gloo: the gradients of policy and critic are those of a single process, but for rounding."""
    from tests.learner.ranks import step

    script = Path(__file__).with_name("ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path / "two.pt"), json.dumps({"engine": engine})],
        cwd=ROOT,
        env=quiet,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone = {"share_prefixes": False} if "share_prefixes" in engine else {}
    two, item = torch.load(tmp_path / "two.pt"), step(model_path, engine=alone)
    assert item is not None and item["metrics"].keys() == two["metrics"].keys()
    for what in ("gradient", "critic"):
        close(two[what], item[what])
    for name in (
        "actor/loss",
        "actor/entropy",
        "actor/kl_loss",
        "critic/vf_loss",
        "off_policy/ess",
        "rollout_corr/k3_kl",
    ):
        assert two["metrics"][name] == pytest.approx(item["metrics"][name], rel=1e-4, abs=1e-6), name


def test_a_critic_learns_the_returns(start: Start) -> None:
    """PPO with verl's value engine, several rows per rollout: its loss falls, and the policy moves with it."""
    trainer = start(algorithm={"adv_estimator": "gae"}, critic={"optim": {"lr": 1e-2}})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0))
    losses = [trainer.step(batch)["critic/vf_loss"] for _ in range(6)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.integration
def test_adapters_alone_are_trained_and_merge_to_what_the_learner_computes(start: Start, tmp_path: Path) -> None:
    """LoRA: the files a node loads give the learner's own log-probabilities."""
    from lightningbus.inference.engine.peft import inspect_adapter
    from lightningbus.inference.engine.worker.weight_transfer import tensors
    from lightningbus.learner.publishing.weight_files import write_full, write_weights

    trainer = start(lora={"lora_rank": 4, "lora_alpha": 8}, actor={"use_kl_loss": True, "optim": {"lr": 1e-2}})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.0))
    write_full(trainer, tmp_path / "base")
    for _ in range(3):
        metrics = trainer.step(batch)
    assert metrics["actor/kl_loss"] > 0, "the model has left the one without adapters"
    write_weights(trainer, tmp_path / "adapters")
    write_full(trainer, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "base").read_bytes()
    rank, scale, modules = inspect_adapter(tmp_path / "adapters")  # as vLLM's own loader is told
    assert (rank, scale) == (4, 2.0) and {"q_proj", "o_proj", "down_proj"} <= set(modules)
    merged = dict(tensors(str(tmp_path / "base"), str(tmp_path / "adapters")))
    full = start()
    missing, unexpected = full._engine.module.load_state_dict(
        {name: _distributed(full, name, part) for name, part in merged.items()}, strict=False
    )
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    for item, other in zip(full.log_probs(batch.sequences), trainer.log_probs(batch.sequences), strict=True):
        np.testing.assert_allclose(item, other, atol=1e-5)


def _distributed(trainer: VerlTrainer, name: str, tensor: torch.Tensor) -> Any:
    from torch.distributed.tensor import distribute_tensor

    local = trainer._engine.module.state_dict()[name]
    return distribute_tensor(tensor, local.device_mesh, local.placements)


@pytest.mark.parametrize(
    ("correction", "check"),
    [
        ({"bypass_mode": False, "rollout_is": "sequence", "rollout_is_threshold": 2.0}, "rollout_is_mean"),
        ({"bypass_mode": False, "rollout_is": "token", "rollout_is_threshold": "0.5_1.5"}, "rollout_is_mean"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.25"}, "rollout_rs_masked_fraction"),
        ({"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}, "rollout_rs_masked_fraction"),
        ({"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.05}, "rollout_rs_masked_fraction"),
        ({"loss_type": "reinforce", "rollout_is": "token", "rollout_is_batch_normalize": True}, "rollout_is_mean"),
    ],
    ids=["sequence TIS", "IcePop", "token_k1", "seq_mean_k3", "seq_max_k2", "REINFORCE"],
)
def test_corrections_are_verls_by_its_own_names(start: Start, model_path: Path, correction: Any, check: str) -> None:
    """Each has its effect, and the same one for rows per call and merged rows: its sequences are calls."""
    trainer = start(algorithm={"rollout_correction": correction})
    rollouts = sampled_by(trainer, conversations(), shift=0.4)
    actual = []
    for rows in ("transition", "trajectory"):
        trainer._settings = settings_for(model_path, sequence_mode=rows, algorithm={"rollout_correction": correction})
        actual.append(gradient_of(trainer, batch_of(trainer, rollouts)))
    (item, (first,)), (_, (second,)) = actual
    close(first, second)
    assert 0 < item["off_policy/ess"] < 1
    value = item[f"rollout_corr/{check}"]
    assert 0 < value < 1 if check.endswith("fraction") else value > 0
    plain = start()
    _, (uncorrected,) = gradient_of(plain, batch_of(plain, rollouts))
    assert any(not torch.allclose(first[name], uncorrected[name], rtol=1e-3) for name in first)


@pytest.mark.parametrize("changes", [{}, {"actor": {"ppo_mini_batch_size": 1}}], ids=["one step", "a step per group"])
def test_rows_of_advantage_zero_are_not_computed_and_the_update_is_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch, changes: Any
) -> None:
    """The rollouts of the second group all have reward 1."""
    rollouts = [
        changed(item, reward=1.0) if item.task_id == "task1" else item
        for item in sampled_by(start(), conversations(), shift=0.9)
    ]
    gradients, counts = [], []
    for keeps_all in (False, True):
        if keeps_all:
            monkeypatch.setattr(
                "lightningbus.learner.training.verl_trainer.find_rows_with_gradient",
                lambda settings, fields: list(range(len(fields["advantages"]))),
            )
        trainer = start(sequence_mode="transition", **changes)
        train = trainer._engine.train_batch
        sizes: list[int] = []

        def count(data: Any, loss: Any, train: Any = train, sizes: list[int] = sizes) -> Any:
            sizes.append(len(data["input_ids"].unbind()))
            return train(data, loss)

        trainer._engine.train_batch = count
        gradients.append(gradient_of(trainer, batch_of(trainer, rollouts))[1])
        counts.append(sizes)
    for few, every in zip(*gradients, strict=True):
        if any(part.abs().max() > 0 for part in every.values()):
            close(few, every)
        else:
            assert all(not part.abs().max() for part in few.values())
    assert sum(counts[0]) < sum(counts[1])
    if len(counts[0]) == 2:
        assert counts[0][1] == 1, "AdamW's moments still move the weights in a step without a gradient"


def test_weights_move_less_when_few_tokens_are_effective(start: Start) -> None:
    """By the share of the guard, whatever clipping and AdamW make of a gradient's size."""
    distances, scales = [], []
    for bound in (0.0, 0.9):
        trainer = start(algorithm={"rollout_correction": {"ess_bound": bound}})
        batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=1.5))
        before = masters(trainer)
        for _ in range(2):  # the second has AdamW's moments
            metrics = trainer.step(batch)
            distances.append(math.dist(flat(masters(trainer)), flat(before)))
            scales.append(metrics["off_policy/ess_scale"])
            assert metrics["actor/lr"] == pytest.approx(LEARNING_RATE), "that of the schedule"
            assert bound == 0 or scales[-1] == pytest.approx(metrics["off_policy/ess"] / bound)
    assert scales[:2] == [1, 1] and max(scales[2:]) < 0.9
    assert distances[2] == pytest.approx(distances[0] * scales[2], rel=1e-3)
    assert distances[3] == pytest.approx(distances[1] * scales[2], rel=0.2)


def flat(named: Named) -> list[float]:
    """All values of tensors."""
    return torch.cat([part.flatten() for part in named.values()]).tolist()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"actor": {"policy_loss": "guess"}}, "policy_loss: 'guess' is not known; known: cispo, clip_cov"),
        (
            {"actor": {"policy_loss_options": {"dro_gamma": 1.0}}},
            "policy_loss_options.dro_gamma: .* no such field; nearest: dro_beta",
        ),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_a_sentence(start: Start, changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        start(**changes)


def test_a_checkpoint_restores_weights_and_optimiser_bit_by_bit(start: Start, tmp_path: Path) -> None:
    trainer = start(algorithm={"adv_estimator": "gae"})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.2))
    trainer.step(batch)
    trainer.save(tmp_path / "checkpoint")
    first = trainer.step(batch)
    expected = masters(trainer)
    again = start(algorithm={"adv_estimator": "gae"})
    again.load(tmp_path / "checkpoint")
    second = again.step(batch)
    assert first["critic/vf_loss"] == second["critic/vf_loss"]
    weights = masters(again)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
