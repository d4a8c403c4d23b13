"""verl's engine on a tiny Qwen2, against a slow and plain reference."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from learner.settings import LearnerSettings
from learner.trainer import Trainer
from learner.transitions import Row
from learner.weighting import row_weights

LEARNING_RATE = 1e-3


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with tied embeddings."""
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        dtype="float32",
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    from transformers import Qwen2Tokenizer

    Qwen2Tokenizer().train_new_from_iterator(["a"], 300, show_progress=False).save_pretrained(path)
    return path


@pytest.fixture
def start(model_path: Path) -> Iterator[Any]:
    """Makes trainers with settings of the rollout correction."""

    def make(**correction: object) -> Trainer:
        settings = {
            "model_path": model_path,
            "threads": 1,
            "actor": {"optim": {"lr": LEARNING_RATE}, "ppo_max_token_len_per_gpu": 128},
            "algorithm": {"rollout_correction": correction},
        }
        return Trainer(LearnerSettings.model_validate(settings))

    yield make


def rows_for(trainer: Trainer, shift: float = 0.0) -> tuple[list[Row], list[float]]:
    """Rows of eight rollouts, two calls each; sampled with the current probabilities, moved by up to ``shift``."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(8):
        for call in range(2):
            # Not token 0: the tokenizer's padding, which an embedding learns nothing for.
            prompt, response = rng.integers(1, 64, rng.integers(3, 9)), rng.integers(1, 64, rng.integers(2, 7))
            zeros = np.zeros(len(response))
            rows.append(Row(f"r{number}", call, prompt, response, zeros.astype(np.float32), zeros.astype(np.int64)))
    sampled = trainer.log_probs(rows)
    moved = [
        Row(
            row.rollout,
            row.call,
            row.prompt_ids,
            row.response_ids,
            (logprobs + rng.uniform(-shift, shift, row.tokens)).astype(np.float32),
            row.versions,
        )
        for row, logprobs in zip(rows, sampled, strict=True)
    ]
    return moved, [1.0 if row.rollout in ("r0", "r1", "r2") else -0.6 for row in moved]


Named = dict[str, torch.Tensor]


def reference_step(model_path: Path, rows: list[Row], advantages: list[float], bypass: bool) -> tuple[Named, Named]:
    """One AdamW step on PPO's clipped loss, row by row, each rollout weighing the same; weights and gradients."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    for row, advantage, weight in zip(rows, advantages, row_weights(rows, "seq-mean-token-mean"), strict=True):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids]))
        logits = model(input_ids=ids[None]).logits[0, len(row.prompt_ids) - 1 : -1]
        now = torch.log_softmax(logits, -1).gather(1, ids[len(row.prompt_ids) :, None])[:, 0]
        sampled = torch.from_numpy(row.logprobs)
        old = sampled if bypass else now.detach()
        ratio = torch.exp(now - old)
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        if advantage < 0:
            loss = torch.minimum(loss, torch.full_like(loss, -advantage * 3.0))
        if not bypass:
            loss = loss * torch.exp(now.detach() - sampled).clamp(max=2.0)
        (loss.sum() * weight).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    named = dict(model.named_parameters())
    return {name: tensor.detach() for name, tensor in named.items()}, {name: found(t) for name, t in named.items()}


def found(tensor: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter."""
    assert tensor.grad is not None
    return tensor.grad


def flat(tensors: Named, names: list[str]) -> torch.Tensor:
    """All elements in one row."""
    return torch.cat([tensors[name].flatten() for name in names])


@pytest.mark.parametrize("bypass", [True, False], ids=["against the sampling policy", "truncated importance weights"])
def test_a_step_is_what_a_plain_reference_does(start: Any, model_path: Path, bypass: bool) -> None:
    trainer = start(bypass_mode=bypass, rollout_is="token", rollout_is_threshold=2.0)
    rows, advantages = rows_for(trainer, shift=0.9)  # some ratios are clipped, some weights truncated
    expected, gradients = reference_step(model_path, rows, advantages, bypass)
    before = trainer.weights()
    trainer.step(rows, advantages)
    after = trainer.weights()
    assert set(after) == set(expected)
    names = list(expected)
    moved, wanted = flat(after, names) - flat(before, names), flat(expected, names) - flat(before, names)
    # AdamW's first step is nearly the sign of the gradient: where that is zero but for rounding (the bias of the keys
    # always is), the sign is chance.
    size = flat(gradients, names).abs()
    sure = size > 1e-4 * size.max()
    assert sure.float().mean() > 0.75
    torch.testing.assert_close(moved[sure], wanted[sure], atol=0.01 * LEARNING_RATE, rtol=0)


def test_the_order_and_cutting_of_micro_batches_change_nothing(start: Any) -> None:
    first = start()
    rows, advantages = rows_for(first)
    order = np.random.default_rng(1).permutation(len(rows))
    second = start()
    first.step(rows, advantages)
    second.step([rows[place] for place in order], [advantages[place] for place in order])
    one, two = first.weights(), second.weights()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=3e-5, rtol=0)


def test_a_step_raises_what_was_good_and_lowers_what_was_not(start: Any) -> None:
    trainer = start()
    rows, advantages = rows_for(trainer)
    before = trainer.log_probs(rows)
    metrics = trainer.step(rows, advantages)
    change = [(new - old).mean() for new, old in zip(trainer.log_probs(rows), before, strict=True)]
    good = np.mean([value for value, advantage in zip(change, advantages, strict=True) if advantage > 0])
    bad = np.mean([value for value, advantage in zip(change, advantages, strict=True) if advantage < 0])
    assert good > bad
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_checkpoint_restores_weights_and_optimiser_bit_by_bit(start: Any, tmp_path: Path) -> None:
    trainer = start()
    rows, advantages = rows_for(trainer)
    trainer.step(rows, advantages)
    trainer.save(tmp_path / "checkpoint")
    trainer.step(rows, advantages)
    expected = trainer.weights()
    again = start()
    again.load(tmp_path / "checkpoint")
    again.step(rows, advantages)
    found = again.weights()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
