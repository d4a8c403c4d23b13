"""Tasks that are selected by their results, and groups without signal that are replaced, while a learner is killed."""

import asyncio
import random
from collections import Counter
from dataclasses import replace as with_fields
from pathlib import Path

import msgspec
import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVENTS, runner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.checkpointing.checkpoint import STATE, LearnerState
from lightningbus.learner.dispatch.group_tasks import find_input_id
from lightningbus.learner.selection.difficulty import TaskResults, add_results
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.training import TaskDecision, TrainingStep
from tests.learner.conftest import settings_for, write_tasks
from tests.learner.test_restart import Training, train_in_lives

SAMPLES, GROUPS, STEPS = 4, 2, 6
MEMORY, RUN = 0.7, "run"


class MixedTasks(Training):
    """Ten tasks: three are hopeless and four are trivial."""

    def choose_reward(self, task: Task, rng: random.Random) -> float:
        kind = task.input % 10
        return 0.0 if kind < 3 else 1.0 if kind < 7 else float(task.sample_index % 2)


def count_results(steps: list[TrainingStep]) -> dict[str, TaskResults]:
    """The results of tasks by the record: groups that were set aside, then those of the step, in order."""
    results: dict[str, TaskResults] = {}
    for step in steps:
        for is_batch in (False, True):
            by_task: dict[str, list[float]] = {}
            for use in step.rollouts:
                if (use.trained if is_batch else use.exclusion_reason == "without signal") and use.reward is not None:
                    by_task.setdefault(use.task_id, []).append(use.reward)
            for task, rewards in by_task.items():
                source = find_input_id(task, RUN)
                results[source] = add_results(results.get(source, TaskResults()), rewards, 1.0, MEMORY)
    return results


@pytest.mark.parametrize("interval", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.timeout(600)
async def test_results_are_counted_once_and_groups_with_signal_are_trained_through_restarts(
    bus: Bus, nats_url: str, model_path: Path, tmp_path: Path, interval: int
) -> None:
    write_tasks(tmp_path / "tasks.jsonl", 10)
    settings = settings_for(
        model_path, run=RUN, tasks=tmp_path / "tasks.jsonl", checkpoint_dir=tmp_path / "checkpoints",
        group_size=SAMPLES, groups_per_step=GROUPS, max_steps=STEPS, max_staleness=1, checkpoint_interval=interval,
        task_selection={"sampler": "difficulty", "replace_without_signal": True, "memory": MEMORY},
    )  # fmt: skip
    await bus.ensure_consumer(runner_consumer("default", "train"))
    await bus.ensure_consumer(with_fields(STORE_EVENTS, durable="listener"))
    run = MixedTasks(bus, random.Random(interval))
    work = [asyncio.create_task(each) for each in (run.run_agents(), run.listen())]
    try:
        await train_in_lives(nats_url, settings, run, 2)
    finally:
        await cancel_and_wait(*work)
    kept = run.kept
    uses = [use for event in kept for use in event.rollouts]
    ids = [use.rollout_id for use in uses]
    assert len(ids) == len(set(ids)), "a rollout is trained or left out, once"
    assert {use.task_id for use in uses} == run.dispatched, "nothing is left"
    trained = {use.task_id for use in uses if use.trained}
    assert len(trained) == STEPS * GROUPS, "a step has its number of groups"
    assert {int(find_input_id(task, RUN)[1:]) >= 7 for task in trained} == {True}, "of those with signal"
    assert all(event.metrics["groups/without_signal"] == 0 for event in kept)
    left_out = {use.task_id for use in uses if use.exclusion_reason == "without signal"}
    assert {int(find_input_id(task, RUN)[1:]) < 7 for task in left_out} == {True}
    check_decisions(run.decisions, run.dispatched, left_out)
    state = msgspec.json.decode((tmp_path / "checkpoints" / "latest" / STATE).read_bytes(), type=LearnerState)
    expected = count_results([event for event in kept if event.step <= state.step])
    counted = {task: each for task, each in state.task_results.items() if each.passed or each.failed}
    assert counted.keys() == expected.keys()
    for task, each in counted.items():
        assert (each.passed, each.failed) == pytest.approx((expected[task].passed, expected[task].failed))


def check_decisions(decisions: list[TaskDecision], dispatched: set[str], left_out: set[str]) -> None:
    """Each dispatched task has been selected, by the same grounds however often that is published."""
    selected = {event.task_id: event for event in decisions if event.decision == "selected"}
    assert selected.keys() == dispatched
    assert len({event for event in decisions if event.decision == "selected"}) == len(selected)
    assert {event.task_id for event in decisions if event.decision == "without_signal"} == left_out
    assert Counter(event.passed for event in decisions if event.decision == "without_signal").keys() <= {0.0, 4.0}
    assert all(0 < event.weight <= 1 and 0 < event.share <= 1 for event in selected.values())
