"""What benchmarks stand on: a bus, a store and runners as processes of their own, and what they take of the machine."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from clickhouse_connect.driver.client import Client

from lightningbus.bus.embedded.nats_server import free_port
from lightningbus.bus.streams.specs import runner_consumer
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.store.clickhouse.client import connect, query_row
from lightningbus.store.lost_rollouts import count_unwritten
from lightningbus.store.settings import StoreSettings

ROOT = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.05
STARTING_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class System:
    """Everything up and running; ``sql`` is of its store."""

    at: LocalStack
    sql: Client

    async def fetch_value(self, statement: str, **parameters: Any) -> Any:
        """First value of an answer."""
        return (await asyncio.to_thread(query_row, self.sql, statement, parameters))[0]

    async def until(self, statement: str, least: int, seconds: float = 300.0, **parameters: Any) -> None:
        """Wait for a count: a row that is readable announces itself by nothing."""
        async with asyncio.timeout(seconds):
            while True:
                if int(await self.fetch_value(statement, **parameters)) >= least:
                    return
                await asyncio.sleep(POLL_SECONDS)

    async def count_unsettled(self) -> int:
        """Evaluation tasks that runners have not settled yet."""
        backlog = await self.at.bus.backlog(runner_consumer("default", "eval"))
        return backlog.num_unacknowledged

    async def until_settled(self, most: int = 0, seconds: float = 300.0) -> None:
        """Wait until runners have at most so many tasks to settle; raises TimeoutError.

        The broker is asked, not the store: queries would be part of what is measured.
        """
        async with asyncio.timeout(seconds):
            while await self.count_unsettled() > most:
                await asyncio.sleep(POLL_SECONDS)

    async def until_stored(self, seconds: float = 300.0) -> None:
        """Wait until runners have settled all tasks and the store has written their ends; raises TimeoutError."""
        await self.until_settled(seconds=seconds)
        async with asyncio.timeout(seconds):
            while await count_unwritten(self.at.bus):
                await asyncio.sleep(POLL_SECONDS)

    async def runners(self, settings: Sequence[RunnerSettings]) -> None:
        """Start runners and wait until they take tasks."""
        for setting in settings:
            await self.at.supervisor.start(ChildSpec(str(setting.id), "runner", setting))
        for name in [str(item.id) for item in settings]:
            await self.at.wait_for_member(
                lambda beat, name=name: beat.id == name and beat.state == "running",  # type: ignore[misc]
                name,
                STARTING_SECONDS,
            )


@asynccontextmanager
async def running(name: str) -> AsyncIterator[System]:
    """A bus and a store in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as place:
        directory = RunDirectory(Path(place) / "run").create()
        async with start_stack(directory, BusSettings(port=0), f"bench {name}") as at:
            store = StoreSettings(data_dir=directory.store, http_port=free_port(), id="store")
            await at.supervisor.start(ChildSpec("store", "store", store))
            member = await at.wait_for_member(lambda beat: beat.role == "store", "store", STARTING_SECONDS)
            yield System(at, await asyncio.to_thread(connect, member.address))


def runner(number: int, agent: str, concurrency: int, **more: Any) -> RunnerSettings:
    """A runner of an async agent in this repository, all its rollouts in one process."""
    local = {"concurrency": concurrency, "max_concurrent_per_process": max(concurrency, 2), "id": f"runner-{number}"}
    return RunnerSettings(entrypoint=agent, working_dir=ROOT, **{**local, **more})


ROLES = {"nats-server": "nats-server", "worker_script": "agents", " store ": "store", " runner ": "runners"}


def usage() -> dict[str, tuple[float, float]]:
    """CPU seconds so far and resident MiB, by role; this process is ``harness``."""
    by_name: dict[str, tuple[float, float]] = {}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            line, times = " ".join(process.cmdline()), process.cpu_times()
            memory = process.memory_info().rss / 2**20
        except psutil.Error:
            continue
        named = next((role for mark, role in ROLES.items() if mark in line), "other")
        role = "harness" if process.pid == me.pid else named
        before = by_name.get(role, (0.0, 0.0))
        by_name[role] = (before[0] + times.user + times.system, before[1] + memory)
    return by_name


def share(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Share of the CPU each role took between two `usage`s."""
    spent = {role: after[role][0] - before.get(role, (0.0, 0.0))[0] for role in after}
    whole = sum(spent.values()) or 1.0
    return {role: round(seconds / whole, 3) for role, seconds in sorted(spent.items(), key=lambda item: -item[1])}
