"""Where a learner begins: with which version, under which epoch, or with a sentence."""

from pathlib import Path
from typing import Any

import pytest

from learner.checkpointing.checkpoint import CheckpointError, Checkpoints, LearnerState
from learner.checkpointing.resume import initial_state
from learner.errors import LearnerError
from learner.settings.learner import LearnerSettings
from schemas.weights.events import Blob, WeightManifest

SETTINGS = LearnerSettings(model_path=Path("model"))


def state(**changes: Any) -> LearnerState:
    return LearnerState(**{"run_id": "run", "model": "policy", "step": 5, "version": 5, "epoch": 2, **changes})


def on_the_bus(version: int, epoch: int) -> WeightManifest:
    blob = Blob(bucket="weights", name="b", size=1, sha256="0" * 64)
    return WeightManifest(
        run_id="run", model="policy", version=version, blobs=(blob,), epoch=epoch, step=version, created_at_ns=1
    )


def test_a_first_start_is_version_0_of_epoch_1() -> None:
    assert initial_state(None, None, SETTINGS) == LearnerState(run_id="run", model="policy")


@pytest.mark.parametrize(
    ("version", "epoch", "expected"),
    [(5, 2, (5, 3)), (4, 1, (5, 3)), (7, 2, (8, 3)), (7, 6, (8, 7))],
    ids=["as it was", "not published yet", "steps are undone", "another learner was there"],
)
def test_a_restart_has_an_epoch_of_its_own_and_gives_no_number_to_other_weights(
    version: int, epoch: int, expected: tuple[int, int]
) -> None:
    begun = initial_state((Path("c"), state()), on_the_bus(version, epoch), SETTINGS)
    assert (begun.version, begun.epoch, begun.step) == (*expected, 5)


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(LearnerError, match="has version 3 on this bus, but runs/checkpoints holds no checkpoint"):
        initial_state(None, on_the_bus(3, 1), SETTINGS)
    with pytest.raises(LearnerError, match="is of run 'other'"):
        initial_state((Path("c"), state(run_id="other")), None, SETTINGS)


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A learner killed at any moment of writing leaves the one before; one directory belongs to one learner."""
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        path = checkpoints.create_temp(step)
        (path / "weights.safetensors").write_bytes(b"%d" % step)
        if step == 1:
            checkpoints.commit(path, state(step=1))
    latest = checkpoints.latest()
    assert latest is not None and latest[1].step == 1 and (latest[0] / "weights.safetensors").read_bytes() == b"1"
    with checkpoints.locked(), pytest.raises(CheckpointError, match="another learner is using"), checkpoints.locked():
        pass
