"""Functions that grade, good and bad; they run in processes of their own."""

import asyncio
import os
import time
from decimal import Decimal
from pathlib import Path


def is_right(task, result):
    """Whether the result is the answer."""
    print("what a function prints is no reply")
    return result == task["answer"]


async def length_of_talk(task, result, rollout):
    """The number of messages."""
    return len(rollout["messages"])


def by_command(task, result):
    """Do what the result says."""
    if result == "hang":
        time.sleep(3600)
    if result == "exit":
        os._exit(3)
    if result == "raise":
        raise ValueError("no such answer")
    if result == "nothing":
        return None
    if result == "nan":
        return float("nan")
    if str(result).startswith("once "):
        marker = Path(result.removeprefix("once "))
        if not marker.exists():
            marker.touch()
            raise ValueError("not yet")
    return 0.5


def of_kind(task, result):
    """A number of the kind that the result names."""
    import numpy as np

    numbers = {
        "float32": np.float32(0.5), "int64": np.int64(1), "bool": np.bool_(True), "array": np.array(0.5),
        "decimal": Decimal("0.5"), "list": [0.5], "vector": np.array([0.5]),
    }  # fmt: skip
    return numbers[result]


def by_loops(task, result):
    """Run loops as libraries with a blocking interface do."""
    loop = asyncio.get_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return asyncio.run(asyncio.sleep(0, result))


def same(task, result):
    """The reward that the result holds, by another sum."""
    return result + 0.1 + 0.2 - 0.3


def opposite(task, result):
    """The other way round."""
    if task["q"] == 2:
        raise ValueError("I cannot say")
    return 1 - result


def slow(task, result):
    """Take a moment, so that a kill finds work under way."""
    time.sleep(0.05)
    return float(result) / 100 + 0.001
