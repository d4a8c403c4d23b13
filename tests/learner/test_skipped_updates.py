"""Updates whose gradient is not finite: verl skips them, and a learner that learns nothing ends."""

import logging
from dataclasses import replace

import pytest
import torch

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.training.skipped_updates import SkippedSteps
from tests.learner.test_trainer import Start, batch_of, conversations, masters, sampled_by

NAN, INF = float("nan"), float("inf")


def test_steps_whose_gradient_is_not_finite_are_counted_and_the_third_in_a_row_ends_the_learner(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = start()
    batch = batch_of(trainer, sampled_by(trainer, conversations(), shift=0.5))
    batch = replace(batch, advantages=dict.fromkeys(batch.advantages, NAN))
    before = masters(trainer)
    with caplog.at_level(logging.WARNING, "learner"):
        for _ in range(2):
            assert trainer.step(batch)["actor/skipped_updates"] == 1
        assert sum("1 of 1 updates of the actor were skipped" in record.message for record in caplog.records) == 2
        with pytest.raises(
            LearnerError, match=r"learned nothing in 3 steps in a row: not finite were actor/grad_norm nan"
        ):
            trainer.step(batch)
    assert all(torch.equal(part, before[name]) for name, part in masters(trainer).items())


def test_a_step_that_moved_the_weights_ends_the_row() -> None:
    good, bad = {"actor/grad_norm": 1.0, "actor/loss": 0.5}, {"actor/grad_norm": INF, "actor/loss": NAN}
    steps = SkippedSteps()
    for updates in ([bad], [bad, bad], [good, bad], [bad], [bad], [good], [bad], [bad]):
        assert len(steps.check(updates)) == int(bad in updates)
    with pytest.raises(LearnerError, match="not finite were actor/grad_norm inf, actor/loss nan; look at the rewards"):
        steps.check([bad])


def test_a_critic_that_learns_nothing_ends_the_learner_too() -> None:
    steps = SkippedSteps()
    for _ in range(2):
        assert len(steps.check([{"actor/grad_norm": 1.0, "critic/grad_norm": NAN}])) == 1
    with pytest.raises(LearnerError, match=r"the critic has learned nothing in 3 steps .* lower critic.optim.lr"):
        steps.check([{"actor/grad_norm": 1.0, "critic/grad_norm": NAN}])
