"""Every metric that a training step reports is declared in the registry."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.schemas.step_metrics import STEP_METRICS, find_undeclared
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for
from tests.learner.test_joined_rows import groups_of_two_turns
from tests.learner.test_loss_parts import mixed_batch
from tests.learner.test_trainer import batch_of, conversations, sampled_by
from tests.learner.test_unbuildable import Loop, fake_trainer

LOSSES = ("gspo", "cispo", "gpg", "sapo", "geo_mean", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl")
CORRECTIONS: list[dict[str, Any]] = [
    {"bypass_mode": False, "rollout_is": "sequence"},
    {"bypass_mode": False, "rollout_is": "token"},
    {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.25"},
    {"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.05},
    {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_batch_normalize": True},
]
CONFIGURATIONS: list[dict[str, Any]] = [
    {"actor": {"use_kl_loss": True, "entropy_coeff": 0.1, "ppo_mini_batch_size": 1}},
    {"algorithm": {"adv_estimator": "gae"}},
    *({"actor": {"policy_loss": name}} for name in LOSSES),
    *({"algorithm": {"rollout_correction": rule}} for rule in CORRECTIONS),
]


def sampled(**fields: Any) -> RolloutGroup:
    calls = [model_call(0, [*range(20)], [8, 9]), model_call(1, [5, 6], [8], **fields)]
    return group("a", *(rollout("a", sample, float(sample), calls=calls, rewards=[1.0, 0.0]) for sample in range(2)))


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=str)
def test_metrics_of_a_trainer_are_declared(start: Callable[..., VerlTrainer], changes: dict[str, Any]) -> None:
    trainer = start(**changes)
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.4))
    assert find_undeclared([*batch.metrics, *trainer.step(batch)]) == []


def test_metrics_of_all_parts_of_a_loss_are_declared(start: Callable[..., VerlTrainer]) -> None:
    trainer = start()
    rollouts = sampled_by(trainer, groups_of_two_turns(), shift=0.4)
    batch = mixed_batch(trainer, rollouts, ("rl", "ce", "kl"), conversations(count=2))
    metrics = trainer.step(batch)
    assert {"actor/ce_loss", "actor/teacher_kl"} <= metrics.keys() and find_undeclared(metrics) == []


def test_metrics_of_a_batch_are_declared() -> None:
    buffer = {"overlong_buffer": {"max_response_length": 100, "len": 10, "penalty_factor": 1.0}}
    settings = settings_for(Path("m"), algorithm=buffer, seq_len=16)
    batch = builder_for(settings, detokenize=str).build([sampled(sampling_params={"top_k": 5})], 0)
    assert {"overlong/penalty", "excluded/too long", "truncated/top_k", "rewards/ignored"} <= batch.metrics.keys()
    assert find_undeclared(batch.metrics) == []


async def test_metrics_of_the_loop_are_declared() -> None:
    loop = Loop(fake_trainer())
    await loop.train(sampled())
    (step,) = loop.steps
    assert "seconds/idle" in step.metrics and find_undeclared(step.metrics) == []


def test_a_metric_that_nobody_declared_is_found() -> None:
    names = ["reward/mean", "excluded/too long", "excluded/a/b", "actor/new"]
    assert find_undeclared(names) == ["excluded/a/b", "actor/new"]


def test_each_metric_is_declared_once_with_a_sentence() -> None:
    names = [metric.name for metric in STEP_METRICS]
    assert len(set(names)) == len(names) and all(metric.meaning.endswith(".") for metric in STEP_METRICS)
