"""An agent that ends at once, and reward functions that hang for the tasks that say so."""

import asyncio
import contextlib
import os
import signal
import threading
import time

HOUR = 3600.0


def solve(task):
    return {"answer": task["answer"]}


async def solve_beside_others(task, endpoint):
    return {"answer": task["answer"]}


def sleeps(task, result):
    if result["answer"] == "hang":
        time.sleep(HOUR)
    return 1.0


async def waits(task, result):
    await asyncio.sleep(HOUR if result["answer"] == "hang" else 0.1)
    return 1.0


async def blocks(task, result):
    await asyncio.sleep(0.3)  # until all of them have begun
    if result["answer"] == "hang":
        time.sleep(HOUR)  # noqa: ASYNC251 - it blocks its event loop
    await asyncio.sleep(0.3)
    return 1.0


async def is_deaf(task, result):
    ends_at = time.monotonic() + (HOUR if result["answer"] == "hang" else 0.1)
    while time.monotonic() < ends_at:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
    return 1.0


async def judge():
    await asyncio.sleep(0)
    return 1.0


def runs_loops(task, result):
    """Run a judge as libraries with a blocking interface do, each of which assumes that no event loop runs."""
    assert threading.current_thread() is threading.main_thread()
    signal.setitimer(signal.ITIMER_REAL, HOUR)
    signal.setitimer(signal.ITIMER_REAL, 0)
    loop = asyncio.get_event_loop()
    score = loop.run_until_complete(judge())
    loop.close()
    return score * asyncio.run(judge())


def gives_a_coroutine(task, result):
    return judge()


def returns_what_it_got(task, result):
    return result["answer"]


async def ends_its_process(task, result):
    await asyncio.sleep(0.3)
    if result["answer"] == "hang":
        os._exit(3)
    await asyncio.sleep(0.3)
    return 1.0
