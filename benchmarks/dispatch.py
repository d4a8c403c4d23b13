"""``python -m benchmarks.dispatch``: what choosing the next group costs, and a restart, with 400,000 problems."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.results import Result, machine, table, write
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.learner.dispatch.dispatcher import Dispatcher
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.selection.task_order import TaskOrder
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.tasks.task_loading import TaskInput

PROBLEMS, DISPATCHED, GROUPS, OUTSTANDING = 400_000, 100_000, 10_000, 64
TICK_SECONDS = 0.001


def seconds(work: Callable[[], object]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def longest_standstill(passes: TaskOrder) -> float:
    """Seconds that the event loop stood still at most while a pass was shuffled."""
    shuffling = asyncio.ensure_future(passes.seek(0))
    longest, before = 0.0, time.perf_counter()
    while not shuffling.done():
        await asyncio.sleep(TICK_SECONDS)
        longest, before = max(longest, time.perf_counter() - before), time.perf_counter()
    return longest - TICK_SECONDS


async def restart() -> float:
    """Seconds that a learner takes to go on after many groups."""
    settings = LearnerSettings(model_path=Path("model"))
    problems = [TaskInput(str(number), number) for number in range(PROBLEMS)]
    outstanding = [
        DispatchedGroup(number=number, served_version=0, is_published=True)
        for number in range(DISPATCHED - OUTSTANDING, DISPATCHED)
    ]
    with tempfile.TemporaryDirectory() as place:
        async with nats_server(Path(place)) as server, Bus.connect(server.url) as bus:
            await bus.provision()
            started = time.perf_counter()
            await Dispatcher(bus, problems, settings, DISPATCHED).restore(outstanding)
            return time.perf_counter() - started


def measure() -> list[Result]:
    """The first group, those after it, a restart, and what the event loop feels of it."""
    passes = TaskOrder(PROBLEMS, 0)
    first = seconds(lambda: passes.at(0))
    later = seconds(lambda: [passes.at(place) for place in range(GROUPS)]) / GROUPS
    stood = asyncio.run(longest_standstill(TaskOrder(PROBLEMS, 0)))
    return [
        Result(f"the first group of a pass of {PROBLEMS:,} problems", round(first, 4), "s"),
        Result("each group after it", round(1e6 * later, 2), "µs"),
        Result("the event loop stands still meanwhile, at most", round(1e3 * stood, 1), "ms"),
        Result(f"a restart after {DISPATCHED:,} groups", round(asyncio.run(restart()), 3), "s"),
    ]


def main() -> list[Result]:
    """Measure and write."""
    results = measure()
    write("dispatch", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    print(machine())
    main()
