"""Tasks that run side by side: the first to end decides, and nothing is left running."""

import asyncio
import subprocess
import sys

import pytest

from lightningbus.common.aio import WorkInterruptedError, first_completed, run_in_daemon_thread, run_unless
from tests.polling import HANG_SECONDS


async def work(seconds: float, left: list[str]) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        left.append("cancelled")
        raise
    return "result"


async def test_the_first_to_end_cancels_the_others() -> None:
    left: list[str] = []
    assert await first_completed(work(60, left), work(0, left), work(60, left)) == {1}
    assert left == ["cancelled", "cancelled"]


async def test_an_error_of_the_first_to_end_is_raised_after_the_others_have_ended() -> None:
    left: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError

    with pytest.raises(KeyError):
        await first_completed(work(60, left), fail())
    assert left == ["cancelled"]


async def test_work_gives_its_result_unless_it_is_interrupted() -> None:
    left: list[str] = []
    assert await run_unless(asyncio.Event().wait(), work(0, left)) == "result"
    with pytest.raises(WorkInterruptedError):
        await run_unless(asyncio.sleep(0), work(60, left))
    assert left == ["cancelled"]


async def test_a_cancelled_race_leaves_nothing_running() -> None:
    left: list[str] = []
    race = asyncio.create_task(run_unless(work(60, left), work(60, left)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert left == ["cancelled", "cancelled"]


async def test_work_that_cleans_up_for_long_is_cancelled_once_if_that_is_asked_for() -> None:
    left: list[str] = []

    async def clean_up_slowly() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await work(0.05, left)

    with pytest.raises(WorkInterruptedError):
        await run_unless(asyncio.sleep(0), clean_up_slowly(), retry_after=None)
    assert left == []
    with pytest.raises(WorkInterruptedError):
        await run_unless(asyncio.sleep(0), clean_up_slowly(), retry_after=0.01)
    assert left == ["cancelled"]


async def test_a_call_in_a_daemon_thread_gives_its_result_or_raises_its_error() -> None:
    assert await run_in_daemon_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in_daemon_thread(divmod, 7, 0)


@pytest.mark.integration
def test_a_call_that_never_returns_holds_neither_the_loop_nor_the_process() -> None:
    program = """
import asyncio, threading
from lightningbus.common.aio import run_in_daemon_thread

async def main():
    try:
        async with asyncio.timeout(0.1):
            await run_in_daemon_thread(threading.Event().wait)
    except TimeoutError:
        print("cancelled")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cancelled\n", "")
