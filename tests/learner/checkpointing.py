"""A process that records steps and writes a checkpoint beside them whenever none is on its way, until it is killed.

It writes down each position that is acknowledged. Argument: the directory of the checkpoints.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path

from lightningbus.learner.checkpointing.checkpoint import Checkpoints, LearnerState
from lightningbus.learner.checkpointing.checkpoint_writer import CheckpointWriter
from lightningbus.learner.checkpointing.journal import StepRecord


async def run(directory: Path) -> None:
    """Go on after the last recorded step."""
    checkpoints = Checkpoints(directory)
    with checkpoints.locked():
        latest, journal, step = checkpoints.latest(), checkpoints.journal, 0
        journal.load()
        if latest is not None:
            step = latest[1].step + sum(
                isinstance(record, StepRecord) for record in journal.since(latest[1].journal_mark)
            )
        writer = CheckpointWriter(checkpoints, check_newest)
        while True:
            step += 1
            journal.append(StepRecord(step, []))
            if not writer.is_writing:
                path, mark = checkpoints.create_temp(step), journal.add_mark()
                state = LearnerState(
                    run_id="run", model="policy", step=step, stream_position=10 * step, journal_mark=mark
                )
                writer.begin(path, state, partial(write, path, step), acknowledge)
            await asyncio.sleep(0)


async def check_newest(epoch: int) -> None:
    """There is no other learner."""


async def acknowledge(position: int) -> None:
    print(position, flush=True)


def write(path: Path, step: int) -> None:
    """Some hundred kilobytes in two files."""
    for name in ("weights", "moments"):
        (path / name).write_bytes(b"%d" % step * 100_000)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
