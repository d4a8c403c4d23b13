"""Decisions of a learner about tasks, as events."""

import math
import time
from collections.abc import Sequence

from lightningbus.bus.client import Bus
from lightningbus.learner.dispatch.group_tasks import find_input_id
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.selection.difficulty import Selection, count_results
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.training import TaskDecision


def refuse_others(num_groups: int) -> None:
    """Raise `LearnerError` if another learner has dispatched groups of the run."""
    if num_groups > 0:
        raise LearnerError(
            "task_selection.sampler: another learner dispatches groups of this run too; samplers other than uniform "
            "are for runs with one learner"
        )


async def publish_selection(bus: Bus, settings: LearnerSettings, task: str, selection: Selection | None) -> None:
    """Publish that a task was selected; nothing where the task follows from the group's number."""
    if selection is not None:
        await _publish(bus, build_selection(settings, task, selection))


def build_selection(settings: LearnerSettings, task: str, selection: Selection) -> TaskDecision:
    """Build the event of a selected task: the same after a restart."""
    return TaskDecision(
        run_id=settings.run,
        model=settings.model,
        task_id=task,
        source_task=selection.task,
        decision="selected",
        passed=selection.passed,
        failed=selection.failed,
        weight=selection.weight,
        share=selection.share,
        decided_at_ns=selection.decided_at_ns,
    )


async def publish_without_signal(bus: Bus, settings: LearnerSettings, task: str, rewards: Sequence[float]) -> None:
    """Publish that a group with these rewards is not trained, and that another takes its place."""
    num_passed, num_failed = count_results(rewards, settings.task_selection.pass_reward)
    event = TaskDecision(
        run_id=settings.run,
        model=settings.model,
        task_id=task,
        source_task=find_input_id(task, settings.run) or task,
        decision="without_signal",
        passed=num_passed,
        failed=num_failed,
        decided_at_ns=time.time_ns(),
    )
    await _publish(bus, event)


async def _publish(bus: Bus, event: TaskDecision) -> None:
    msg_id = ids.decision_msg_id(event.model, event.task_id, event.decision)
    await bus.publish(subjects.TASK_DECIDED, event, msg_id=msg_id, timeout=math.inf)
