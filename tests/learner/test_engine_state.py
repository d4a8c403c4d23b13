"""A checkpoint belongs to no number of ranks: what one wrote two go on from, and the other way round, to the bit."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightningbus.common.processes import host_memory
from lightningbus.learner.training.verl_trainer import VerlTrainer
from tests.learner.test_trainer import batch_of, conversations, whole
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

CHANGES = {
    "algorithm": {"adv_estimator": "gae"},
    "actor": {"optim": {"lr": 1e-3, "lr_warmup_steps": 4}, "ppo_max_token_len_per_gpu": 64},
    "critic": {"optim": {"lr": 1e-3}},
}
"""With a critic, and a rate that tells how many steps were made."""


def everything(trainer: VerlTrainer) -> dict[str, Any]:
    """All that a step goes on from, whole, by name; every rank must ask."""
    assert trainer._critic is not None
    by_name: dict[str, Any] = {}
    for which, engine in (("actor", trainer._engine), ("critic", trainer._critic.engine)):
        for name, part in engine.module.named_parameters():
            by_name[f"{which} {name}"] = whole(part)
            for what, value in engine.optimizer.state[part].items():
                by_name[f"{which} {name} {what}"] = whole(value)
        by_name[f"{which} rate"] = torch.tensor(engine.lr_scheduler.get_last_lr())
    return by_name


def same(item: dict[str, Any], other: dict[str, Any]) -> None:
    assert item.keys() == other.keys()
    for name, value in item.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.long
def test_a_checkpoint_goes_on_with_any_number_of_ranks(
    start: Callable[..., VerlTrainer], model_path: Path, tmp_path: Path
) -> None:
    """One rank, then two, then one: weights, moments and rates are the same to the bit, and so is what a step does."""
    trainer = start(**CHANGES)
    batch = batch_of(trainer, conversations(count=7))
    trainer.step(batch)
    trainer.save(tmp_path / "one")
    before = everything(trainer)
    (tmp_path / "batch").write_bytes(pickle.dumps(batch))
    script = Path(__file__).with_name("restarted.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    reported = [model_path, *(tmp_path / name for name in ("one", "batch", "two", "found"))]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, *map(str, reported)], env=env, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    loaded, saved, after = torch.load(tmp_path / "found")
    same(loaded, before)
    again = start(**CHANGES)
    again.load(tmp_path / "two")
    same(everything(again), saved)
    again.step(batch)
    for name, value in everything(again).items():
        torch.testing.assert_close(value, after[name], rtol=1e-4, atol=1e-6, msg=name)
    trainer.load(tmp_path / "one")
    same(everything(trainer), before)
    trainer.step(batch)
    for name, value in everything(trainer).items():
        torch.testing.assert_close(value, saved[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("changes", [{}, {"lora": {"lora_rank": 4}}], ids=["all weights", "adapters"])
def test_a_step_after_a_restart_is_the_step_without_one(
    start: Callable[..., VerlTrainer], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """To the bit, from before the first step on; a checkpoint is written after the step that follows it."""
    untouched, saving = start(**changes), start(**changes)
    batch = batch_of(untouched, conversations(count=7))
    for step in range(2):
        write = saving.begin_save(tmp_path / f"{step}")
        for item in (untouched, saving):
            item.step(batch)
        write()
        restarted = start(**changes)
        restarted.load(tmp_path / f"{step}")
        restarted.step(batch)
        for item in (saving, restarted):
            parts = zip(untouched._engine.module.parameters(), item._engine.module.parameters(), strict=True)
            assert all(torch.equal(whole(part), whole(other)) for part, other in parts)


def test_without_room_for_a_copy_a_checkpoint_is_written_at_once(
    start: Callable[..., VerlTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 0)
    trainer = start()
    trainer.begin_save(tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint" / ".metadata").exists()


def test_a_checkpoint_goes_on_at_the_rate_of_the_settings(start: Callable[..., VerlTrainer], tmp_path: Path) -> None:
    """The settings may have changed since; the schedule goes on where it was."""
    trainer = start(**CHANGES)
    batch = batch_of(trainer, conversations(count=3))
    trainer.step(batch)
    trainer.save(tmp_path / "one")
    optim = {"lr": 2e-4, "lr_warmup_steps": 4, "weight_decay": 0.5}
    other = start(**CHANGES | {"actor": {**CHANGES["actor"], "optim": optim}})
    other.load(tmp_path / "one")
    rate = trainer._engine.lr_scheduler.get_last_lr()[0] / 5
    assert other._engine.lr_scheduler.get_last_lr() == [pytest.approx(rate)] and rate > 0
    (group,) = other._engine.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (pytest.approx(rate), 0.5)
    assert other.step(batch)["actor/lr"] == pytest.approx(rate)
