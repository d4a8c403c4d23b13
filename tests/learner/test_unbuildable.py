"""Rollouts of which no batch can be made: their groups are excluded with the reason, and training goes on."""

import importlib
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from lightningbus.learner.accounting import ExcludedRollouts
from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.batching.unbuildable import MAX_IN_A_ROW
from lightningbus.learner.checkpointing.checkpoint import LearnerState
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.groups import GroupBuffer, RolloutGroup
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.training_loop import TrainingLoop
from lightningbus.schemas.training import TrainingStep
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for

BAD = "bad-task"
SETTINGS: dict[str, Any] = {
    "staleness": {"on_exceed": "mask"},
    "algorithm": {
        "overlong_filtering": True,
        "overlong_buffer": {"max_response_length": 100, "len": 10, "penalty_factor": 1.0},
    },
}
BATCH_STEPS = (
    "lightningbus.learner.training_loop.quarantine_reasons",
    "lightningbus.learner.batching.batch.training_reward",
    "lightningbus.learner.batching.batch.find_penalty",
    "lightningbus.learner.batching.batch.Episode.of_calls",
    "lightningbus.learner.batching.credit._outcome",
    "lightningbus.learner.batching.built_rollout.build_transitions",
    "lightningbus.learner.batching.built_rollout.build_sequences",
    "lightningbus.learner.batching.built_rollout.max_staleness_of",
    "lightningbus.learner.batching.built_rollout.mask_stale_tokens",
    "lightningbus.learner.batching.built_rollout.is_cut",
    "lightningbus.learner.batching.batch.disposition_of",
    "lightningbus.learner.batching.batch.compute_metrics",
    "lightningbus.learner.batching.batch.Batch.token_advantages",
    "lightningbus.learner.batching.batch.Batch.compute_sha256",
)
TRAINER_STEPS = (
    "lightningbus.learner.training.verl_trainer.Segments",
    "lightningbus.learner.training.verl_trainer.leave_uncorrected",
    "lightningbus.learner.training.verl_trainer.TokenInputs",
    "lightningbus.learner.training.verl_trainer.split_mini_batches",
    "lightningbus.learner.training.verl_trainer.find_part_factors",
    "lightningbus.learner.training.verl_trainer.weigh_parts",
    "lightningbus.learner.training.verl_trainer.balance_by_tokens",
    "lightningbus.learner.training.verl_trainer.find_rows_with_gradient",
)


async def call(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def rewarded(task: str) -> RolloutGroup:
    calls = [model_call(0, [5, 6, 7], [8, 9], request=task)]
    return group(task, *(rollout(task, sample, float(sample), samples=2, calls=calls) for sample in range(2)))


class Loop:
    """A training loop whose bus and checkpoints are not there."""

    def __init__(self, trainer: Any, **changes: Any) -> None:
        settings = trainer.settings if hasattr(trainer, "settings") else None
        settings = settings or settings_for("m", groups_per_step=2, **{**SETTINGS, **changes})  # type: ignore[arg-type]
        self.groups = GroupBuffer(60.0, lambda rollout: True)
        consumer = Mock(groups=self.groups)
        self.dispatcher = Mock(replace_dropped=AsyncMock())
        self.excluded = ExcludedRollouts(consumer, settings)
        self.training = TrainingLoop(
            bus=Mock(), settings=settings, state=LearnerState(run_id="run", model="policy"), consumer=consumer,
            dispatcher=self.dispatcher, recovery=Mock(status=dict), builder=builder_for(settings), trainer=trainer,
            committer=Mock(), excluded=self.excluded, nodes=Mock(),
            audits=Mock(refresh=AsyncMock(), state=Mock(verdicts=())), in_thread=call,
        )  # fmt: skip
        self.steps: list[TrainingStep] = []
        self.training._commit = self._commit  # type: ignore[method-assign,assignment]

    async def _commit(self, state: LearnerState, event: TrainingStep, *others: Any) -> None:
        self.steps.append(event)

    async def train(self, *groups: RolloutGroup) -> None:
        await self.training._train_on([*groups], 0.0)

    def pop_ready(self) -> list[RolloutGroup]:
        return self.groups.pop_ready(len(self.groups.ready))


@pytest.fixture
def break_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make a function raise whenever its arguments name some text."""

    def patch(path: str, text: str) -> None:
        parts = path.split(".")
        for size in range(len(parts) - 1, 0, -1):
            try:
                owner: Any = importlib.import_module(".".join(parts[:size]))
            except ImportError:
                continue
            break
        for name in parts[size:-1]:
            owner = getattr(owner, name)
        function = getattr(owner, parts[-1])

        def broken(*arguments: Any, **named: Any) -> Any:
            if text in repr((arguments, named)):
                raise ArithmeticError("an odd number")
            return function(*arguments, **named)

        monkeypatch.setattr(owner, parts[-1], broken)

    return patch


def fake_trainer() -> Mock:
    return Mock(spec=["step", "can_go_on"], step=Mock(return_value={}), can_go_on=True)


@pytest.mark.parametrize("path", BATCH_STEPS)
async def test_an_error_in_any_step_of_building_a_batch_excludes_the_groups_at_fault_and_trains_the_others(
    break_step: Callable[[str, str], None], path: str
) -> None:
    loop = Loop(fake_trainer())
    break_step(path, BAD)
    await loop.train(rewarded(BAD), rewarded("good"))
    ready = loop.pop_ready()
    assert [group.task_id for group in ready] == ["good"] and not loop.steps
    loop.dispatcher.replace_dropped.assert_awaited_with([BAD])
    await loop.train(*ready, rewarded("other"))
    (step,) = loop.steps
    reasons = {use.task_id: use.exclusion_reason for use in step.rollouts}
    assert reasons == {"good": "", "other": "", BAD: "not built: ArithmeticError: an odd number"}
    assert sum(use.trained for use in step.rollouts) == 4 and len(step.rollouts) == 6


async def test_an_error_in_the_trainer_before_it_changes_anything_excludes_the_batch(
    break_step: Callable[[str, str], None], start: Callable[..., VerlTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(start())
    for number, path in enumerate(TRAINER_STEPS):
        break_step(path, "")
        await loop.train(rewarded(f"{BAD}-{number}"), rewarded(f"good-{number}"))
        assert not loop.pop_ready() and not loop.steps, path
        assert len(loop.excluded.drain()) == 4
        monkeypatch.undo()
        await loop.train(rewarded(f"next-{number}"))
        (step,) = loop.steps
        assert all(use.trained for use in step.rollouts) and step.metrics["actor/grad_norm"] > 0
        loop.steps.clear()


async def test_an_error_once_the_weights_have_begun_to_change_ends_the_learner(
    start: Callable[..., VerlTrainer],
) -> None:
    trainer = start()
    loop = Loop(trainer)
    trainer._update_policy = Mock(side_effect=ArithmeticError("in the middle"))  # type: ignore[method-assign]
    with pytest.raises(ArithmeticError, match="in the middle"):
        await loop.train(rewarded("a"))


async def test_a_run_ends_with_the_reason_when_no_batch_at_all_can_be_built(
    break_step: Callable[[str, str], None],
) -> None:
    """It is no fault of single rollouts then."""
    loop = Loop(fake_trainer())
    break_step("lightningbus.learner.batching.built_rollout.build_sequences", "")
    for number in range(MAX_IN_A_ROW - 1):
        await loop.train(rewarded(f"{number}"))
    sentence = f"the last {MAX_IN_A_ROW} batches could not be built: ArithmeticError: an odd number"
    with pytest.raises(LearnerError, match=sentence):
        await loop.train(rewarded("last"))


async def test_groups_at_fault_in_every_batch_end_no_run_that_trains_others(
    break_step: Callable[[str, str], None],
) -> None:
    loop = Loop(fake_trainer())
    break_step("lightningbus.learner.batching.built_rollout.build_sequences", BAD)
    for number in range(3 * MAX_IN_A_ROW):
        await loop.train(rewarded(f"{BAD}{number}"), rewarded(f"good{number}"))
        loop.pop_ready()
    assert not loop.steps


async def test_a_reward_that_float32_has_not_excludes_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it came to the learner; one that float32 has is trained."""
    loop = Loop(fake_trainer(), algorithm={"adv_estimator": "rloo"})
    odd = group("odd", rollout("odd", 0, 1e39, samples=2), rollout("odd", 1, 0.0, samples=2))
    await loop.train(odd, rewarded("good"))
    await loop.train(*loop.pop_ready())
    (step,) = loop.steps
    assert {use.task_id: use.trained for use in step.rollouts} == {"good": True, "odd": False}
    large = group("large", rollout("large", 0, 1e30, samples=2), rollout("large", 1, -1e30, samples=2))
    loop = Loop(fake_trainer())
    await loop.train(large)
    ((batch,), _) = loop.training.trainer.step.call_args  # type: ignore[attr-defined]
    assert isinstance(batch, Batch)
    assert [round(value, 4) for value in batch.advantages.values()] == [0.7071, 0.7071, -0.7071, -0.7071]
