"""Many rollouts in one run: memory, file descriptors and disk must have a ceiling, not a slope."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from lightningbus.common.aio import cancel_and_wait
from tests.chaos.running_system import RunningSystem

LOOK_SECONDS = 5.0
MAX_STORE_THREADS = 800
"""The pools' own bound as ClickHouse ships them: 512 to schedule, 16 to merge, and less of each other kind."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a process uses at one moment."""

    rollouts: int
    rss_mib: float
    descriptors: int
    """Open files outside /proc: embedded ClickHouse keeps three there for each thread that has run a query."""
    threads: int


@dataclass
class Resources:
    """Use of each process over a run, looked at every five seconds."""

    system: RunningSystem
    by_process: dict[str, list[Use]] = field(default_factory=dict)
    disk_mib: list[tuple[int, float]] = field(default_factory=list)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator["Resources"]:
        """Look while the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            await cancel_and_wait(task)

    def memory(self) -> dict[str, list[float]]:
        """Resident MiB of each process: at the beginning, the most, and at the end."""
        by_name = {name: [use.rss_mib for use in uses] for name, uses in self.by_process.items()}
        return {name: [round(seen[0]), round(max(seen)), round(seen[-1])] for name, seen in by_name.items()}

    async def _watch(self) -> None:
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        ended = len(self.system.tap.ended)
        for target in self.system.targets:
            try:
                process = psutil.Process(self.system.pid(target))
                use = Use(
                    ended, process.memory_info().rss / 2**20, count_descriptors(process.pid), process.num_threads()
                )
            except (psutil.NoSuchProcess, psutil.ZombieProcess, FileNotFoundError):
                continue
            self.by_process.setdefault(target, []).append(use)
        self.disk_mib.append((ended, disk_use(self.system.directory) / 2**20))


def count_descriptors(pid: int) -> int:
    """Open files, sockets and pipes of a process, without those in /proc."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += not str(link.readlink()).startswith("/proc/")
    return count


def disk_use(directory: Path) -> int:
    """Bytes of all files below a directory; files that go meanwhile count as nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += (Path(folder) / name).lstat().st_blocks * 512
    return total


def second_half_growth(values: Sequence[float]) -> float:
    """How much the highest value of the last quarter is above the highest of the second quarter."""
    quarter = len(values) // 4
    return max(values[-quarter:]) - max(values[quarter : 2 * quarter])


def find_slopes(resources: Resources, most_mib: float, most_descriptors: int, disk_kib_per_rollout: float) -> list[str]:
    """A sentence for each process, or the disk, that grows without end."""
    sentences = []
    for name, uses in resources.by_process.items():
        memory = second_half_growth([use.rss_mib for use in uses])
        if memory > most_mib:
            sentences.append(f"{name} grew by {memory:.0f} MiB in the second half of the run")
        growth = second_half_growth([float(use.descriptors) for use in uses])
        if growth > most_descriptors:
            sentences.append(f"{name} opened {growth:.0f} more files in the second half of the run")
        if max(use.threads for use in uses) > MAX_STORE_THREADS:
            sentences.append(f"{name} has more than {MAX_STORE_THREADS} threads")
    (begin, small), (end, large) = resources.disk_mib[len(resources.disk_mib) // 2], resources.disk_mib[-1]
    per_rollout = (large - small) * 1024 / max(end - begin, 1)
    if per_rollout > disk_kib_per_rollout:
        sentences.append(f"the disk grew by {per_rollout:.1f} KiB for each rollout")
    return sentences
