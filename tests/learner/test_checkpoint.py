"""A checkpoint is used as it was written, or not at all: the one before it is."""

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lightningbus.bus.jetstream.verified_download import sha256_of
from lightningbus.learner.checkpointing.checkpoint import LATEST, CheckpointError, Checkpoints, LearnerState
from lightningbus.learner.checkpointing.seal import SEAL, Seal

WEIGHTS = "weights.safetensors"


def written(directory: Path, *steps: int) -> Checkpoints:
    """Checkpoints of some steps."""
    checkpoints = Checkpoints(directory / "checkpoints")
    for step in steps:
        path = checkpoints.create_temp(step)
        (path / WEIGHTS).write_bytes(b"%d" % step * 1000)
        (path / "trainer").mkdir()
        (path / "trainer" / ".metadata").write_bytes(pickle.dumps(step))
        checkpoints.commit(path, LearnerState(run_id="run", model="policy", step=step))
    return checkpoints


def cut(path: Path) -> None:
    os.truncate(path / WEIGHTS, 500)


def change(path: Path) -> None:
    (path / "trainer" / ".metadata").write_bytes(pickle.dumps(print))


def change_with_its_digest(path: Path) -> None:
    """As whoever can write there, and has not the key."""
    change(path)
    seal = msgspec.json.decode((path / SEAL).read_bytes(), type=Seal)
    files = {**seal.files, "trainer/.metadata": sha256_of(path / "trainer" / ".metadata")}
    (path / SEAL).write_bytes(msgspec.json.encode(Seal(files, seal.mac)))


def remove(path: Path) -> None:
    (path / "state.json").unlink()


def add(path: Path) -> None:
    (path / "trainer" / "more").write_bytes(b"")


def open_up(path: Path) -> None:
    (path / "trainer" / ".metadata").chmod(0o666)


def unseal(path: Path) -> None:
    (path / SEAL).unlink()


def garble(path: Path) -> None:
    (path / SEAL).write_bytes(b"\xff{")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (cut, "weights.safetensors is not what was written"),
        (change, "trainer/.metadata is not what was written"),
        (change_with_its_digest, "is not by the key of this run"),
        (remove, "state.json is missing"),
        (add, "trainer/more is missing, or was added"),
        (open_up, ".metadata belongs to another user, or others may change it"),
        (unseal, "it has no seal.json"),
        (garble, "its seal.json cannot be read"),
    ],
)
def test_a_checkpoint_that_is_not_what_was_written_gives_way_to_the_one_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], why: str
) -> None:
    """With a sentence; the broken one is kept, and the next checkpoint takes no place from a whole one."""
    checkpoints = written(tmp_path, 1, 2)
    directory = tmp_path / "checkpoints"
    harm((directory / LATEST).resolve())
    with caplog.at_level(logging.ERROR):
        latest = checkpoints.latest()
    assert latest is not None and latest[1].step == 1 and (latest[0] / WEIGHTS).read_bytes() == b"1" * 1000
    assert why in caplog.text and "goes on from step-000001-1" in caplog.text
    written(tmp_path, 2)
    assert sorted(path.name for path in directory.glob("*-*")) == [
        "broken-step-000002-1", "step-000001-1", "step-000002-1",
    ]  # fmt: skip
    latest = checkpoints.latest()
    assert latest is not None and latest[1].step == 2


def test_checkpoints_none_of_which_can_be_used_end_in_one_sentence(tmp_path: Path) -> None:
    checkpoints = written(tmp_path, 1, 2)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        cut(path)
    with pytest.raises(
        CheckpointError, match=r"none in .*checkpoints can be used \(step-000002-1: weights.*begin anew"
    ):
        checkpoints.latest()


@pytest.mark.parametrize("leads", [False, True])
def test_a_missing_latest_is_said_and_the_newest_checkpoint_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, leads: bool
) -> None:
    checkpoints = written(tmp_path, 9, 10)
    pointer = tmp_path / "checkpoints" / LATEST
    pointer.unlink()
    if leads:
        pointer.symlink_to("nowhere")
    latest = checkpoints.latest()
    assert latest is not None and latest[1].step == 10
    assert "latest is missing or leads nowhere" in caplog.text


def test_a_key_that_others_can_read_seals_nothing(tmp_path: Path) -> None:
    checkpoints = written(tmp_path, 1)
    key = tmp_path / "checkpoints.key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(CheckpointError, match=r"checkpoints\.key belongs to another user, or others may"):
        checkpoints.latest()


def test_checkpoints_brought_from_elsewhere_without_their_key_are_not_loaded(tmp_path: Path) -> None:
    checkpoints = written(tmp_path, 1)
    (tmp_path / "checkpoints.key").write_text("another\n")
    with pytest.raises(CheckpointError, match=r"not by the key of this run.*bring back a copy with .*checkpoints\.key"):
        checkpoints.latest()


def test_a_lost_key_is_named_and_not_replaced_while_checkpoints_are_sealed_by_it(tmp_path: Path) -> None:
    checkpoints, key = written(tmp_path, 1), tmp_path / "checkpoints.key"
    lost = key.rename(tmp_path / "backup")
    for use in (checkpoints.latest, lambda: checkpoints.of_step(1), lambda: written(tmp_path, 2)):
        with pytest.raises(CheckpointError, match=rf"{key} is missing, .* put it back from a backup, or begin anew"):
            use()
        assert not key.exists()
    lost.rename(key)
    latest = checkpoints.latest()
    assert latest is not None and latest[1].step == 1


def test_a_changed_checkpoint_is_not_loaded_to_make_a_step_again(tmp_path: Path) -> None:
    checkpoints = written(tmp_path, 1, 2)
    assert checkpoints.of_step(1) == tmp_path / "checkpoints" / "step-000001-1" and checkpoints.of_step(3) is None
    change_with_its_digest(tmp_path / "checkpoints" / "step-000001-1")
    with pytest.raises(CheckpointError, match=r"step-000001-1 cannot be used: .*not by the key of this run"):
        checkpoints.of_step(1)
