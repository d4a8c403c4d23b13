"""How the CPU time of a function grows with what it is given."""

import gc
import time
from collections.abc import Callable
from typing import Any

FACTOR = 8
"""How many times as much the larger input is: linear work takes 8 times as long, quadratic work 64 times."""
MAX_GROWTH = 2.0
"""Of the CPU time of each item, between an input and one ``FACTOR`` times as large: 1 is linear, 8 is quadratic."""
MIN_SECONDS = 0.004
"""Of CPU time that is compared: a shorter one says little."""
REPETITIONS = 8
SIZES = 2

Make = Callable[[int], Callable[[], Any]]


def measure_growth(make: Make, size: int) -> float:
    """Return how many times as long an item takes in an input ``FACTOR`` times as large.

    ``make`` returns the function to measure for a size, which is doubled until the function takes long enough.

    Each time is the best of several, because neighbours slow a machine down, and never speed it up. Where the growth is
    large, that of a larger size is looked at too: once, a cache of the machine becomes too small.
    """
    while _seconds(make(size)) < MIN_SECONDS:
        size *= 2
    growth = float("inf")
    for _ in range(SIZES):
        growth = min(growth, _growth_from(make, size))
        if growth <= MAX_GROWTH:
            break
        size *= 2
    return growth


def _growth_from(make: Make, size: int) -> float:
    small, large = make(size), make(FACTOR * size)
    best, best_of_large = _seconds(small), _seconds(large)
    for _ in range(REPETITIONS):
        best, best_of_large = min(best, _seconds(small)), min(best_of_large, _seconds(large))
        if best_of_large <= MAX_GROWTH * FACTOR * best or best > 0.25:
            break
    return best_of_large / best / FACTOR


def _seconds(work: Callable[[], Any]) -> float:
    gc.disable()  # it looks at all objects there are, those of other tests too
    try:
        started = time.thread_time()
        work()
        return time.thread_time() - started
    finally:
        gc.enable()
