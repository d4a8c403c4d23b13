"""A system with work to do, let finish and judged: what every scenario stands on."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lightningbus.common.aio import cancel_and_wait, first_completed
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.run.evaluation.request import expand_samples
from lightningbus.schemas import ids
from lightningbus.tasks.task_loading import TaskInput
from tests.chaos.faults import Log
from tests.chaos.oracle import Verdict, judge
from tests.chaos.report import Report
from tests.chaos.running_system import GROUPS, RUN, SAMPLES, RunningSystem, run_system

FINISH_SECONDS = 900.0
WARM_UP = 16
TOGETHER, FEW = 16, 4
MEMORY_SECONDS = 1.0
Examine = Callable[[RunningSystem, Verdict], Awaitable[None]]


def steps_for(rollouts: int) -> int:
    """Training steps that use at least so many rollouts."""
    return -(-rollouts // (SAMPLES * GROUPS))


class Memory:
    """Resident memory of each process, looked at each second."""

    def __init__(self, system: RunningSystem) -> None:
        self._system = system
        self.seen: dict[str, list[float]] = {}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator["Memory"]:
        """Look while the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            await cancel_and_wait(task)

    async def _watch(self) -> None:
        while True:
            for name, size in self._system.memory().items():
                begin, most, _ = self.seen.get(name, [round(size), 0, 0])
                self.seen[name] = [begin or round(size), max(most, round(size)), round(size)]
            await asyncio.sleep(MEMORY_SECONDS)


class Busy:
    """Evaluation tasks beside the learner's, so that there is always work; `rollouts` is what was published."""

    def __init__(self, system: RunningSystem) -> None:
        self._system = system
        self.rollouts: list[str] = []

    @asynccontextmanager
    async def kept(self) -> AsyncIterator["Busy"]:
        """Publish while the block runs, some tasks at a time; none is left half published at its end."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._publish(stop))
        try:
            yield self
        finally:
            stop.set()
            await task

    async def _publish(self, stop: asyncio.Event) -> None:
        fields = {"run_id": RUN, "agent": "default", "mode": "eval", "deadline": 120.0, "max_attempts": 30}
        while not stop.is_set():
            first = len(self.rollouts) // TOGETHER
            problems = [TaskInput(f"eval{first}-{n}", {"question": f"what is {first} {n}?"}) for n in range(TOGETHER)]
            await publish_all(
                self._system.bus, expand_samples(problems, 1, **fields), timeout=300, on_done=lambda: None
            )
            self.rollouts += [ids.rollout_id(problem.id, 0) for problem in problems]
            while not stop.is_set() and len(self._system.tap.ended.keys() & self.rollouts) < len(self.rollouts) - FEW:
                await self._system.tap.rollouts(len(self._system.tap.ended) + 1)


@asynccontextmanager
async def at_work(
    place: Path,
    report: Report,
    name: str,
    steps: int,
    token_seconds: float,
    evaluate: bool = True,
    bound: int | None = None,
    examine: Examine | None = None,
    **more: Any,
) -> AsyncIterator[tuple[RunningSystem, Log]]:
    """A system with work to do while the block runs; then it is let finish, and judged.

    ``evaluate``: evaluation tasks are published beside the learner's. ``bound``: no trained token may be older.
    ``examine`` adds to the verdict.
    """
    log = Log()
    async with (
        run_system(place, steps=steps, token_seconds=token_seconds, **more) as system,
        Memory(system).watched() as memory,
    ):
        busy = Busy(system)
        async with busy.kept() if evaluate else nullcontext():
            await first_completed(system.tap.rollouts(WARM_UP), system.failed())
            yield system, log
        await system.finished(FINISH_SECONDS)
        verdict = await judge(system, busy.rollouts, system.vocabulary, bound)
        if examine is not None:
            await examine(system, verdict)
        report.add(name, log, verdict, memory.seen)


@contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path | None]:
    """A file system of its own, in memory; None where mounting one is not allowed."""
    path.mkdir(exist_ok=True)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)], capture_output=True)
    if mount.returncode:
        print(f"a full disk is not tried: {mount.stderr.decode().strip()}", flush=True)
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
