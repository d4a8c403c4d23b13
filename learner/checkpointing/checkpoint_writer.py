"""A checkpoint on its way to disk while training goes on, one at a time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from nats.errors import Error as NatsError

from lightningbus.bus.errors import BusError
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.checkpointing.checkpoint import Checkpoints, LearnerState

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Seconds before a bus that did not answer is asked again."""
Write = Callable[[], None]
"""Writes the trainer's state into the directory of a checkpoint."""
OnWritten = Callable[[int], Awaitable[None]]
"""Called with the stream position of a checkpoint once it is the latest: everything before may be acknowledged."""


class CheckpointWriter:
    """Writes in a thread of its own; then makes the checkpoint the latest, unless a newer learner has published."""

    def __init__(self, checkpoints: Checkpoints, check_newest: Callable[[int], Awaitable[None]]) -> None:
        """``check_newest`` raises `LearnerError` after a newer learner has published, or an error of the bus."""
        self._checkpoints, self._check_newest = checkpoints, check_newest
        self._task: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()
        self._is_closing = False
        self.last_cpu_seconds = 0.0
        """CPU time of the thread for the last checkpoint."""

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is on its way."""
        return self._task is not None and not self._task.done()

    def begin(self, path: Path, state: LearnerState, write: Write, on_written: OnWritten) -> None:
        """Begin to write the checkpoint at ``path``; the one before must have ended."""
        assert not self.is_writing
        self._task = asyncio.create_task(self._write(path, state, write, on_written))
        self._task.add_done_callback(self._note_failure)

    async def wait(self) -> None:
        """Wait until nothing is on its way; raise the error of what was last."""
        if self._task is not None:
            await asyncio.wait({self._task})
            self._task.result()

    async def watch(self) -> None:
        """Raise the error of a write as soon as one fails; never return."""
        while True:
            await self._failed.wait()
            await self.wait()

    async def close(self) -> None:
        """Wait for the checkpoint on its way, as `wait`; give it up if the bus is away."""
        self._is_closing = True
        try:
            await self.wait()
        except (BusError, NatsError) as error:
            log.warning("the last checkpoint is given up, as the bus is away: %s", str(error) or type(error).__name__)

    async def abandon(self) -> None:
        """Give up the checkpoint on its way: it does not become the latest, and nothing is acknowledged."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _write(self, path: Path, state: LearnerState, write: Write, on_written: OnWritten) -> None:
        self.last_cpu_seconds = await asyncio.to_thread(self._finish, path, state, write)
        await self._wait_until_newest(state.epoch)
        await asyncio.to_thread(self._checkpoints.replace_latest, path, state)
        self._checkpoints.journal.trim(state.journal_mark)
        await on_written(state.stream_position)

    def _finish(self, path: Path, state: LearnerState, write: Write) -> float:
        """Return the CPU seconds of this thread."""
        began = time.thread_time()
        write()
        self._checkpoints.finish(path, state)
        return time.thread_time() - began

    async def _wait_until_newest(self, epoch: int) -> None:
        """Return once the bus has said that this learner is the newest."""
        while True:
            try:
                await self._check_newest(epoch)
            except (BusError, NatsError):
                if self._is_closing:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _note_failure(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failed.set()
