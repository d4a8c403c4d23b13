"""Steps of a job are iterated as they come; leaving the loop ends the job in order, once."""

import asyncio
import inspect
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lightningbus as lb
from lightningbus.api.training_steps import TrainingSteps
from tests.polling import HANG_SECONDS

RESULT = lb.TrainResult(Path("runs/a"), {}, [])


class Job:
    """A job whose callback is called from a thread, as the real one's; it takes a moment to end in order."""

    def __init__(self, num_steps: int, last: Exception | None = None, goes_on: bool = False) -> None:
        self._num_steps, self._last, self._goes_on = num_steps, last, goes_on
        self.num_cancelled = 0
        self.has_ended = False

    async def run(self, report: lb.Callback) -> lb.TrainResult:
        try:
            for number in range(1, self._num_steps + 1):
                await asyncio.to_thread(report.on_step, step(number))
            if self._goes_on:
                await asyncio.Event().wait()
            if self._last is not None:
                raise self._last
            return RESULT
        except asyncio.CancelledError:
            await self._end()
            raise

    async def _end(self) -> None:
        self.num_cancelled += 1
        try:
            for _ in range(10):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        self.has_ended = True


def step(number: int) -> lb.Step:
    return lb.Step("policy", number, number, datetime.now(UTC), {"reward/mean": number / 4})


async def test_every_step_comes_in_order_and_then_the_result() -> None:
    async with TrainingSteps(Job(3).run) as steps:
        with pytest.raises(lb.UserError, match="has not reached its end"):
            _ = steps.result
        assert [(each.step, each.version, each.reward) async for each in steps] == [
            (1, 1, 0.25),
            (2, 2, 0.5),
            (3, 3, 0.75),
        ]
        assert steps.result is RESULT
    assert steps.result is RESULT


async def test_leaving_the_loop_ends_the_job_in_order_before_the_block_is_left() -> None:
    job = Job(2, goes_on=True)
    async with TrainingSteps(job.run) as steps:
        async for each in steps:
            if each.step == 2:
                break
    assert (job.num_cancelled, job.has_ended) == (1, True)
    with pytest.raises(lb.UserError, match="or call it again with resume=True"):
        _ = steps.result


async def test_an_error_in_the_loop_ends_the_job_too() -> None:
    job = Job(1, goes_on=True)
    with pytest.raises(KeyError):
        async with TrainingSteps(job.run) as steps:
            async for each in steps:
                _ = each.metrics["no_such_metric"]
    assert (job.num_cancelled, job.has_ended) == (1, True)


async def test_a_cancelled_loop_ends_the_job_and_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    job, is_waiting = Job(1, goes_on=True), asyncio.Event()

    async def loop() -> None:
        async with TrainingSteps(job.run) as steps:
            async for _ in steps:
                is_waiting.set()

    task = asyncio.create_task(loop())
    async with asyncio.timeout(HANG_SECONDS):
        await is_waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "the same call with resume=True goes on" in " ".join(capsys.readouterr().err.split())
    assert (job.num_cancelled, job.has_ended) == (1, True)


async def test_a_job_that_fails_says_why_after_its_last_step() -> None:
    seen = []
    with pytest.raises(lb.UserError, match="the learner has ended"):
        async with TrainingSteps(Job(1, lb.UserError("the learner has ended")).run) as steps:
            async for each in steps:
                seen.append(each.step)
    assert seen == [1]
    with pytest.raises(lb.UserError, match="the learner has ended"):
        _ = steps.result


async def test_steps_are_iterated_once() -> None:
    async with TrainingSteps(Job(1).run) as steps:
        assert [each.step async for each in steps] == [1]
        with pytest.raises(lb.UserError, match="these steps were iterated before"):
            [each async for each in steps]


async def test_a_block_without_a_loop_starts_nothing() -> None:
    started = threading.Event()

    async def run(report: lb.Callback) -> lb.TrainResult:
        started.set()
        return RESULT

    async with TrainingSteps(run):
        pass
    assert not started.is_set()


async def test_a_step_without_a_reward_has_none() -> None:
    assert lb.Step("policy", 1, 1, datetime.now(UTC), {}).reward is None


def test_it_has_the_arguments_of_atrain() -> None:
    ours, theirs = (list(inspect.signature(each).parameters.values()) for each in (lb.atrain_steps, lb.atrain))
    assert ours == theirs
