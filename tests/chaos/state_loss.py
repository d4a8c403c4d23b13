"""Faults of what is on disk: ClickHouse's disk full, checkpoints truncated, the bus rolled back, emptied or removed."""

import asyncio
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lightningbus.schemas import subjects
from tests.chaos.faults import DOWN_SECONDS, RECOVERY_SECONDS, Log
from tests.chaos.running_system import RunningSystem

LOSING_STEPS = 2
"""Training steps between the copy of the bus and the moment it comes back."""


def fill(disk: Path) -> Path:
    """Leave not a byte free; returns the file to remove."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)
    return filler


async def full_store_disk(system: RunningSystem, log: Log, disk: Path) -> None:
    """No room where embedded ClickHouse writes: the store says so, acknowledges nothing, and goes on when there is."""
    filler = await asyncio.to_thread(fill, disk)
    async with asyncio.timeout(RECOVERY_SECONDS):
        while not any(beat.role == "store" and beat.status.get("problem") for beat in system.fleet.members()):
            await system.fleet.wait_for_change()
    await asyncio.sleep(DOWN_SECONDS)  # the fault itself
    filler.unlink()
    async with log.timed("ClickHouse disk full"):
        while any(beat.role == "store" and beat.status.get("problem") for beat in system.fleet.members()):
            await system.fleet.wait_for_change()
        await system.tap.rollouts(len(system.tap.ended) + 1)


async def truncated_checkpoint(system: RunningSystem, log: Log) -> None:
    """The newest checkpoint lost half of its largest file: the learner goes on from the one before."""
    async with asyncio.timeout(RECOVERY_SECONDS):
        while len(list((system.directory / "checkpoints").glob("step-*"))) < 2:  # one is written beside the steps
            await asyncio.sleep(0.05)
    since, old = time.monotonic(), system.pid("learner")
    system.signal("learner", signal.SIGSTOP)
    newest = (system.directory / "checkpoints" / "latest").resolve()
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size // 2)
    system.signal("learner", signal.SIGKILL)
    async with log.timed("checkpoint truncated"):
        await system.working("learner", since, old)
        await system.tap.steps_made(system.tap.steps + 1)


async def rolled_back_bus(system: RunningSystem, log: Log) -> None:
    """The broker comes back with an older copy of its data, as from a backup or a power loss."""
    copy = system.directory / "copy"

    def save(data: Path) -> None:
        system.signal("nats", signal.SIGSTOP)
        try:
            shutil.copytree(data, copy)
        finally:
            system.signal("nats", signal.SIGCONT)

    await asyncio.to_thread(save, _data(system))
    await system.tap.steps_made(system.tap.steps + LOSING_STEPS)
    await _lose(system, log, "bus rolled back", lambda data: shutil.copytree(copy, data))


async def emptied_bus(system: RunningSystem, log: Log) -> None:
    """The broker comes back with no data at all; somebody provisions it, as `up` does."""
    await _lose(system, log, "bus emptied", lambda data: None)


async def removed_bus(system: RunningSystem, log: Log) -> None:
    """The broker's directory is removed under it while it runs."""
    await asyncio.to_thread(shutil.rmtree, _data(system), ignore_errors=True)
    await asyncio.sleep(DOWN_SECONDS)  # the fault itself
    await _lose(system, log, "bus directory removed", lambda data: None)


def _data(system: RunningSystem) -> Path:
    return system.nats.directory / "jetstream"


async def _lose(system: RunningSystem, log: Log, fault: str, restore: Callable[[Path], object]) -> None:
    """Kill the broker, put other data in its place before it is started again, and wait for the next training step."""
    data, steps, since, old = _data(system), system.tap.steps, time.monotonic(), system.pid("nats")
    lost_at = time.time_ns()
    with suppress(FileNotFoundError):
        data.rename(system.directory / f"lost-{fault.replace(' ', '-')}")
    await asyncio.to_thread(restore, data)
    system.signal("nats", signal.SIGKILL)
    system.state_was_lost = True
    async with log.timed(fault):
        await system.working("nats", since, old)
        await system.bus.provision()
        await system.tap.resume()
        await system.tap.steps_made(steps + 1)
    await system.alert_is_stored(subjects.TRAIN_ROLLOUTS, lost_at)
