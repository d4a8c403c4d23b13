"""Nobody can take the id of a learner's message before the learner does."""

from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import DuplicateMessageError, FencedError
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.learner.checkpointing.checkpoint import LearnerState
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training_loop import TrainingLoop
from lightningbus.schemas import subjects
from lightningbus.schemas.training import TrainingStep
from lightningbus.schemas.weights.events import WeightManifest, WeightsActivated
from tests import tensorfiles


@pytest.fixture
def settings(tmp_path: Path) -> LearnerSettings:
    return LearnerSettings(model_path=tmp_path, run="run", checkpoint_dir=tmp_path / "checkpoints")


async def test_a_role_that_guesses_message_ids_suppresses_no_weight_version(
    bus: Bus, tmp_path: Path, settings: LearnerSettings
) -> None:
    """A node may write to the same stream: it takes the id that a version had, and every one that it has read."""
    weights = tensorfiles.write(tmp_path / "weights.safetensors", {"a": ("F32", (64,), bytes(256))})
    (tmp_path / "checkpoints").mkdir()
    publisher = WeightPublisher(bus, settings)
    for version in range(3):
        guessed = [f"weights:policy:1:{version}"]
        if version:
            last = await bus.js.get_last_msg(subjects.WEIGHTS, subjects.weights("policy"), direct=True)
            before, after = f":1:{version - 1}:", f":1:{version}:"
            guessed.append((last.headers or {})["Nats-Msg-Id"].replace(before, after))
        for msg_id in guessed:
            applied = WeightsActivated(
                node="evil", model="m", version=0, fetch_seconds=0.0, pause_seconds=0.0, activated_at_ns=1
            )
            await bus.publish(subjects.activated("evil"), applied, msg_id=msg_id)
        await publisher.publish(weights, version=version, epoch=1, step=version)
    assert [manifest.version async for manifest, _ in WeightRegistry(bus, "policy").list_versions()] == [2, 1, 0]


async def test_a_step_whose_id_was_taken_is_an_error_and_one_said_again_after_a_crash_is_none(
    bus: Bus, settings: LearnerSettings
) -> None:
    unused: Any = None
    loop = TrainingLoop(bus, settings, LearnerState(run_id="run", model="policy"), *[unused] * 10)
    step = TrainingStep(
        run_id="run", model="policy", step=1, version=1, epoch=1, started_ns=1, ended_ns=2,
        rollouts=(), metrics={}, batch_sha256="", settings="{}", spans=(),
    )  # fmt: skip
    version = WeightManifest(run_id="r", model="m", version=0, blobs=(), epoch=1, step=0, created_at_ns=1)
    await bus.publish(subjects.TASK_PUBLISHED, version, msg_id="step:run:1:1")
    await bus.publish(subjects.TASK_PUBLISHED, version, msg_id="step:run:1:1:taken")
    with pytest.raises(DuplicateMessageError, match="step:run:1:1:taken"):
        await loop.publish_step(step, "taken", unique=True)
    await loop.publish_step(step, "mine", unique=True)
    await loop.publish_step(step, "mine")
    assert (await bus.js.stream_info(subjects.EVENTS)).state.messages == 3


async def test_bytes_of_a_stranger_stop_no_learner(bus: Bus, tmp_path: Path, settings: LearnerSettings) -> None:
    """Compare-and-set goes over what counts for nothing; over another learner's version it does not."""
    weights = tensorfiles.write(tmp_path / "weights.safetensors", {"a": ("F32", (64,), bytes(256))})
    (tmp_path / "checkpoints").mkdir()
    publisher, other = WeightPublisher(bus, settings), WeightPublisher(bus, settings)
    await publisher.publish(weights, version=0, epoch=1, step=0)
    await bus.publish_bytes(subjects.weights("policy"), b"{}", {}, 10)
    assert (last := await other.refresh()) is not None and last.version == 0
    await publisher.publish(weights, version=1, epoch=1, step=1)
    with pytest.raises(FencedError):
        await other.publish(weights, version=1, epoch=1, step=1)
    assert [manifest.version async for manifest, _ in WeightRegistry(bus, "policy").list_versions()] == [1, 0]
