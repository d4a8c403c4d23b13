"""A learner that learns nothing says so: by its heartbeat, and once in the stream of alerts."""

import asyncio
import shutil
from pathlib import Path

from lightningbus.bus.client import Bus
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training_alerts import TrainingAlerts
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Alert
from tests.factories import batches
from tests.learner.test_findings import SILENT, step
from tests.learner.test_gap import finish, learning, take
from tests.learner.test_rejection_streak import wait_for_alert
from tests.polling import HANG_SECONDS

SENTENCE = "learner of policy: nothing is learned: all rewards of the last steps are 1, so no answer is better"


async def test_a_run_whose_rewards_are_all_equal_says_that_nothing_is_learned(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(HANG_SECONDS),
        bus.fleet("learner") as learners,
        learning(bus, model_path, tmp_path) as running,
    ):
        for task in await take(bus, 2):
            for part in batches(task.id, task.sample_index, 1.0, samples=2):
                await bus.publish(subjects.TRAIN_ROLLOUT, part, msg_id=f"{part.execution_id}:{part.sequence}")
        await running
        assert (await wait_for_alert(learners)).startswith(SENTENCE)
    alert, _ = await bus.get_last(subjects.ALERTS, subjects.ALERT, Alert) or (None, 0)
    assert alert is not None and alert.role == "learner" and alert.reason.startswith(SENTENCE) and not alert.resolved


async def test_a_learner_whose_checkpoint_is_older_than_the_newest_version_says_what_it_gives_up(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    """A standby with a copy of the checkpoints made a step; then the first learner comes back with its own."""
    first, standby = tmp_path / "first", tmp_path / "standby"
    async with asyncio.timeout(2 * HANG_SECONDS), bus.fleet("learner") as learners:
        for directory, max_steps in ((first, 1), (standby, 2)):
            if directory == standby:
                shutil.copytree(first, standby, symlinks=True)
                shutil.copy(first.with_suffix(".key"), standby.with_suffix(".key"))
            changes = {"max_steps": max_steps, "max_staleness": 1, "checkpoint_dir": directory}
            async with learning(bus, model_path, tmp_path, **changes) as running:
                await finish(bus, await take(bus, 2))
                await running
        assert await num_alerts(bus) == 0, "a first start and one with the newest checkpoint give up nothing"
        async with learning(bus, model_path, tmp_path, max_steps=2, checkpoint_dir=first):
            reason = await wait_for_alert(learners)
    expected = f"training goes back to step 1: {first} ends there, and the newer steps on the bus (1) are given up"
    assert reason.startswith(f"learner of policy: {expected}") and await num_alerts(bus) == 1


async def num_alerts(bus: Bus) -> int:
    return (await bus.js.stream_info(subjects.ALERTS)).state.messages


async def test_an_alert_is_published_once_also_after_a_restart_and_again_when_it_is_over(bus: Bus) -> None:
    settings = LearnerSettings(model_path=Path("m"), max_steps=100)
    alerts = TrainingAlerts(bus, settings)
    for _ in range(4):
        alerts.add_step(step(SILENT))
        await alerts.update({})
    assert await num_alerts(bus) == 1
    again = TrainingAlerts(bus, settings)
    await again.restore()
    again.add_step(step(SILENT))
    await again.update({})
    assert await num_alerts(bus) == 1 and [*again.sentences] == ["no_signal"]
    for _ in range(3):
        again.add_step(step())
    await again.update({"": "the last 2 groups gave nothing"})
    assert await num_alerts(bus) == 3 and [*again.sentences] == ["groups_rejected:"]
