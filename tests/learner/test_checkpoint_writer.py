"""A checkpoint that is written beside training: what is acknowledged when, and what a kill amid it leaves."""

import asyncio
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lightningbus.bus.errors import BusError
from lightningbus.learner.checkpointing import checkpoint_writer
from lightningbus.learner.checkpointing.checkpoint import TRAINER, Checkpoints, LearnerState
from lightningbus.learner.checkpointing.checkpoint_writer import CheckpointWriter
from lightningbus.learner.checkpointing.journal import StepRecord
from lightningbus.learner.errors import LearnerError
from tests.polling import HANG_SECONDS

NUM_KILLS = 6


class Writing:
    """A directory of checkpoints, whose writer waits for ``go_on`` amid each."""

    def __init__(self, directory: Path) -> None:
        self.checkpoints = Checkpoints(directory)
        self.writer = CheckpointWriter(self.checkpoints, self._check_newest)
        self.go_on = threading.Event()
        self.answers: list[Exception] = []
        """Errors with which the bus answers first."""
        self.acknowledged: list[int] = []

    async def _check_newest(self, epoch: int) -> None:
        if self.answers:
            raise self.answers.pop(0)

    def begin(self, step: int, write: Callable[[Path], None] | None = None) -> None:
        path = self.checkpoints.create_temp(step)
        state = LearnerState(
            run_id="run", model="policy", step=step, stream_position=10 * step,
            journal_mark=self.checkpoints.journal.add_mark(),
        )  # fmt: skip

        def write_slowly() -> None:
            (path / TRAINER).mkdir()
            (path / TRAINER / "first").write_bytes(b"%d" % step * 1000)
            assert self.go_on.wait(HANG_SECONDS)
            (write or (lambda path: None))(path)

        async def acknowledge(position: int) -> None:
            self.acknowledged.append(position)

        self.writer.begin(path, state, write_slowly, acknowledge)

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint."""
        latest = self.checkpoints.latest()
        return latest[1].step if latest is not None else None


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path / "checkpoints")


async def test_nothing_is_acknowledged_before_the_checkpoint_is_on_disk(writing: Writing) -> None:
    writing.begin(1)
    writing.checkpoints.journal.append(StepRecord(2, []))
    assert writing.writer.is_writing and writing.latest is None and not writing.acknowledged
    writing.go_on.set()
    await writing.writer.wait()
    assert not writing.writer.is_writing and writing.latest == 1 and writing.acknowledged == [10]
    latest = writing.checkpoints.latest()
    assert latest is not None
    writing.checkpoints.journal.load()
    assert writing.checkpoints.journal.since(latest[1].journal_mark) == [StepRecord(2, [])], "made since the copy"


async def test_an_older_learner_does_not_replace_the_checkpoint(writing: Writing) -> None:
    writing.answers.append(LearnerError("another learner has published"))
    writing.begin(1)
    writing.go_on.set()
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(LearnerError, match="another learner"):
            await writing.writer.watch()
    assert writing.latest is None and not writing.acknowledged


async def test_an_error_of_the_write_ends_the_learner(writing: Writing) -> None:
    def fail(path: Path) -> None:
        raise OSError("no space left")

    writing.begin(1, fail)
    writing.go_on.set()
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(OSError, match="no space left"):
            await writing.writer.watch()
    with pytest.raises(OSError, match="no space left"):
        await writing.writer.wait()
    assert writing.latest is None and not writing.acknowledged


async def test_a_bus_that_is_away_is_asked_again_but_not_by_a_learner_that_stops(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_writer, "RETRY_SECONDS", 0.0)
    writing.answers.append(BusError("no answer"))
    writing.go_on.set()
    writing.begin(1)
    await writing.writer.wait()
    assert writing.acknowledged == [10]
    writing.answers.append(BusError("no answer"))
    writing.begin(2)
    await writing.writer.close()
    assert "is given up, as the bus is away: no answer" in caplog.text
    assert writing.latest == 1 and writing.acknowledged == [10]


async def test_an_abandoned_checkpoint_never_becomes_the_latest(writing: Writing) -> None:
    writing.begin(1)
    await writing.writer.abandon()
    assert not writing.writer.is_writing
    writing.go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()  # the thread has ended
    assert writing.latest is None and not writing.acknowledged
    with writing.checkpoints.locked():
        assert not list((writing.checkpoints.journal._path.parent).glob(".writing-*"))


@pytest.mark.integration
def test_a_learner_killed_amid_writes_has_all_that_it_acknowledged(tmp_path: Path) -> None:
    rng, acknowledged = random.Random(0), 0
    for _ in range(NUM_KILLS):
        command = [sys.executable, "-m", "tests.learner.checkpointing", str(tmp_path / "checkpoints")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 6)):
                acknowledged = int(process.stdout.readline())
            threading.Event().wait(rng.uniform(0.0, 0.02))  # some moment of the next write
            process.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        latest = checkpoints.latest()
        assert latest is not None and latest[1].stream_position >= acknowledged
        checkpoints.journal.load()
        records = checkpoints.journal.since(latest[1].journal_mark)
        recorded = [record.version for record in records if isinstance(record, StepRecord)]
        assert recorded == list(range(latest[1].step + 1, latest[1].step + 1 + len(recorded)))
    assert not list((tmp_path / "checkpoints").glob("broken-*"))
