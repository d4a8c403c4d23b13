"""The forward pass before the update is made where the update needs it, and else only now and then, for metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightningbus.learner.training.correction import needs_log_probs
from lightningbus.learner.training.effective_sample import effective_sample_size
from lightningbus.learner.training.verl_trainer import VerlTrainer
from tests.learner.conftest import settings_for
from tests.learner.test_trainer import batch_of, close, conversations, gradient_of, masters, sampled_by

Start = Callable[..., VerlTrainer]
PASS_METRICS = {"rollout_corr/k3_kl", "rollout_corr/kl"}


def count_passes(trainer: VerlTrainer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of sequences of each pass without a gradient."""
    counts: list[int] = []
    infer = trainer._engine.infer_batch

    def count(data: Any) -> Any:
        counts.append(len(data))
        return infer(data)

    monkeypatch.setattr(trainer._engine, "infer_batch", count)
    return counts


def test_the_pass_is_made_in_every_third_step_alone_and_its_metrics_are_absent_in_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(actor={"old_log_prob_interval": 3})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    passes, has_metrics = [], []
    counts = count_passes(trainer, monkeypatch)
    for _ in range(5):
        metrics = trainer.step(batch)
        passes.append(len(counts))
        counts.clear()
        has_metrics.append(metrics.keys() >= PASS_METRICS)
        assert has_metrics[-1] or not [name for name in metrics if name.startswith("rollout_corr/")]
        assert metrics.keys() >= {
            "actor/loss",
            "actor/entropy",
            "actor/ppo_kl",
            "off_policy/ess",
            "off_policy/ess_scale",
            "actor/lr",
        }
    assert passes == [1, 0, 0, 1, 0]
    assert has_metrics == [True, False, False, True, False]


def test_the_interval_goes_on_after_a_restart(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = start(actor={"old_log_prob_interval": 2})
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    trainer.step(batch)
    trainer.save(tmp_path / "checkpoint")
    again = start(actor={"old_log_prob_interval": 2})
    again.load(tmp_path / "checkpoint")
    counts = count_passes(again, monkeypatch)
    assert not again.step(batch).keys() & PASS_METRICS and not counts
    assert again.step(batch).keys() >= PASS_METRICS and counts


@pytest.mark.parametrize("changes", [{}, {"use_kl_loss": True, "entropy_coeff": 0.05}], ids=["PPO", "KL and entropy"])
def test_weights_move_the_same_with_the_pass_and_without(start: Start, changes: Any) -> None:
    """Gradient, guard and optimiser: bit by bit, where the guard has something to do."""
    weights, gradients, scales = [], [], []
    for interval in (1, 100):
        actor = {"old_log_prob_interval": interval, **changes}
        trainer = start(actor=actor, algorithm={"rollout_correction": {"ess_bound": 0.9}})
        batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=1.5))
        for _ in range(3):
            scales.append(trainer.step(batch)["off_policy/ess_scale"])
        weights.append(masters(trainer))
        metrics, (gradient,) = gradient_of(trainer, batch)
        assert ("rollout_corr/kl" in metrics) == (interval == 1)
        gradients.append(gradient)
    assert scales[:3] == scales[3:] and max(scales) < 1
    close(gradients[0], gradients[1])
    for name, part in weights[0].items():
        assert torch.equal(weights[1][name], part), name


@pytest.mark.parametrize("rows", ["trajectory", "transition"])
@pytest.mark.parametrize("changes", [{}, {"use_kl_loss": True}], ids=["with a gradient", "all"])
def test_the_effective_sample_of_the_update_is_that_of_a_pass(start: Start, rows: str, changes: Any) -> None:
    """Over several micro-batches, and over the tokens of advantage 0 only where they have a gradient."""
    actor = {"ppo_max_token_len_per_gpu": 64, "old_log_prob_interval": 100, **changes}
    trainer = start(sequence_mode=rows, actor=actor)
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=1.5))
    task = batch.sequences[0].rollout_id.partition("@")[0].split(".")[0]
    for key in batch.advantages:  # of one task no token has an advantage
        if key[0].startswith(task):
            batch.advantages[key] = 0.0  # type: ignore[index]
    sequences = batch.sequences
    chosen = [row.trained & (bool(changes) | (batch.token_advantages(row) != 0)) for row in sequences]
    assert any(part.any() for part in chosen)
    assert bool(changes) == all((part == row.trained).all() for part, row in zip(chosen, sequences, strict=True))
    current, sampled = trainer.log_probs(sequences), [row.logprobs for row in sequences]
    expected = effective_sample_size(current, sampled, chosen)
    metrics, _ = gradient_of(trainer, batch)
    assert metrics["off_policy/ess"] == pytest.approx(expected, rel=1e-4) and expected < 0.95


NEEDED = {
    "decoupled": {"algorithm": {"rollout_correction": {"bypass_mode": False}}},
    "rejection": {"algorithm": {"rollout_correction": {"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}}},
    "REINFORCE's weights": {"algorithm": {"rollout_correction": {"loss_type": "reinforce"}}},
    "the guard of two updates": {"actor": {"ppo_mini_batch_size": 1}},
    "the guard of two epochs": {"actor": {"ppo_epochs": 2}},
}
NOT_NEEDED = {
    "PPO": {},
    "REINFORCE without weights": {"algorithm": {"rollout_correction": {"loss_type": "reinforce", "rollout_is": None}}},
    "two epochs without a guard": {
        "actor": {"ppo_epochs": 2},
        "algorithm": {"rollout_correction": {"ess_bound": 0}},
    },
}


@pytest.mark.parametrize("changes", NEEDED.values(), ids=NEEDED.keys())
def test_a_pass_that_the_update_needs_is_made_in_every_step(
    start: Start, monkeypatch: pytest.MonkeyPatch, changes: Any
) -> None:
    trainer = start(**changes)
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    counts = count_passes(trainer, monkeypatch)
    for step in range(1, 3):
        metrics = trainer.step(batch)
        assert len(counts) == step and metrics.keys() >= {*PASS_METRICS, "off_policy/ess"}


@pytest.mark.parametrize("changes", NOT_NEEDED.values(), ids=NOT_NEEDED.keys())
def test_other_updates_do_without_it(
    start: Start, model_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any
) -> None:
    assert not needs_log_probs(settings_for(model_path, **changes))
    trainer = start(**changes)
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    trainer.step(batch)
    counts = count_passes(trainer, monkeypatch)
    assert not trainer.step(batch).keys() & PASS_METRICS and not counts
