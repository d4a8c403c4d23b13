"""`atrain_steps`: a training job whose steps are iterated while it runs."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from lightningbus.api.options import with_options
from lightningbus.api.settings import RunFile, TrainSettings
from lightningbus.api.tasks import Tasks
from lightningbus.api.train_result import TrainResult
from lightningbus.api.training import atrain, check_callbacks
from lightningbus.run.display.live_view import console
from lightningbus.run.errors import UserError
from lightningbus.run.jobs.callbacks import Callback, Step, StepQueue

Start = Callable[[Callback], Coroutine[Any, Any, TrainResult]]
"""Starts a job with one more callback."""


class TrainingSteps:
    """The steps of one training job, in order; made by `atrain_steps`.

    The job starts with the first step that is asked for, and does not wait for whoever takes the steps. Leaving the
    loop or the block ends it as Ctrl-C does: its data is kept, and the same call with resume=True goes on.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._task: asyncio.Task[TrainResult] | None = None
        self._is_stopped = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_interrupted = kind is asyncio.CancelledError and self._task is not None
        await self.close()
        if is_interrupted:  # a notebook shows the cancellation alone
            console().print("the run is stopped; the same call with resume=True goes on if it had started")

    def __aiter__(self) -> AsyncIterator[Step]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Step]:
        if self._task is not None:
            raise UserError("these steps were iterated before: the same call with resume=True has the next ones")
        steps: asyncio.Queue[Step | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        report = _StepReport(lambda step: loop.call_soon_threadsafe(steps.put_nowait, step))
        self._task = asyncio.create_task(self._start(report))
        self._task.add_done_callback(lambda _: steps.put_nowait(None))
        try:
            while (step := await steps.get()) is not None:
                report.last_taken[step.model] = step.step
                yield step
            self._task.result()
        finally:
            self._stop()

    async def close(self) -> None:
        """End the job if it runs, and wait until its processes have ended; an error as it ends is in `result`."""
        if self._task is not None:
            self._stop()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # taken, or asyncio logs that nobody did

    @property
    def result(self) -> TrainResult:
        """Figures, evaluations and directory of the job after its last step.

        Raises `UserError` where it has not reached its end, or has failed.
        """
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise UserError("the run has not reached its end: iterate all steps, or call it again with resume=True")
        return self._task.result()

    def _stop(self) -> None:
        """Cancel the job once: a second time would interrupt the orderly end of its processes."""
        if self._task is not None and not self._is_stopped:
            self._is_stopped = True
            self._task.cancel()


class _StepReport(StepQueue):
    """Passes steps on from the thread of the callbacks."""

    def __init__(self, report: Callable[[Step], object]) -> None:
        super().__init__()
        self._report = report

    def on_step(self, step: Step) -> None:
        self._report(step)


@with_options(TrainSettings)
def atrain_steps(
    agent: str | Callable[..., Any] | None = None,
    model: str | os.PathLike[str] | None = None,
    tasks: Tasks | None = None,
    heldout: Tasks | None = None,
    *,
    settings: RunFile | None = None,
    resume: bool | str = False,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[TrainSettings],
) -> TrainingSteps:
    """Train an agent as `atrain` does, and iterate over its steps as they are stored.

    Args:
        agent: as in `atrain`.
        model: as in `atrain`.
        tasks: as in `atrain`.
        heldout: as in `atrain`.
        settings: as in `atrain`.
        resume: as in `atrain`; the steps go on after the last one that the loop before had.
        callbacks: as in `atrain`; each gets a step before the loop does, and a reason of one ends training as there.
        options: as in `atrain`.

    Returns:
        The steps, and the result after the last one. Use it in ``async with``, so that the processes have ended after
        the block.

    Raises:
        UserError: the same as `atrain`, where the steps are iterated.
    """

    def start(report: Callback) -> Coroutine[Any, Any, TrainResult]:
        check_callbacks(callbacks)
        every = [*callbacks, report]
        return atrain(agent, model, tasks, heldout, settings=settings, resume=resume, callbacks=every, **options)

    return TrainingSteps(start)
