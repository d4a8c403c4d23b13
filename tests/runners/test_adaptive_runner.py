"""A runner without `concurrency` in its settings opens slots by itself; one with a number keeps to it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeat_text import describe
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.common.observability.metric_registry import REGISTRIES
from lightningbus.common.processes import host_memory, procfs
from lightningbus.runners.concurrency import search
from lightningbus.runners.concurrency.search import FIRST_SLOTS, MAX_SLOTS
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ended, running, task

GIB = 2**30
TASKS_AHEAD = 100


def slots_of(beat: Heartbeat) -> int:
    """How many rollouts its heartbeat says that a runner may run at once."""
    return int(str(beat.status["busy"]).partition("/")[2])


def slots_metric() -> float | None:
    return REGISTRIES["runner"].get_sample_value("lightningbus_runner_slots")


def num_agents() -> int:
    """How many processes of agents this process has."""
    commands = [Path(f"/proc/{pid}/cmdline") for pid in procfs.children_of(os.getpid())]
    return sum("worker_script.py" in command.read_text() for command in commands if command.exists())


async def seen(fleet: Fleet, is_wanted: Callable[[Heartbeat], bool]) -> Heartbeat:
    """The first heartbeat of a runner at work that is as wanted."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            for beat in fleet.members():
                if beat.state == "running" and is_wanted(beat):
                    return beat
            await fleet.wait_for_change()


async def publish(bus: Bus, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await TaskPublisher(bus).publish_task(task(id=f"t{number}", input={"seconds": 0.1}))


async def seen_at_work(bus: Bus, fleet: Fleet, is_wanted: Callable[[Heartbeat], bool]) -> Heartbeat:
    """The first heartbeat that is as wanted of a runner that has tasks until then."""
    num_published = num_done = 0

    def is_enough(beat: Heartbeat) -> bool:
        nonlocal num_done
        num_done = int(str(beat.status["done"]))
        return is_wanted(beat) or num_done > num_published - TASKS_AHEAD

    num_published = int(str((await seen(fleet, lambda beat: True)).status["done"]))
    while True:
        await publish(bus, TASKS_AHEAD, num_published)
        num_published += TASKS_AHEAD
        beat = await seen(fleet, is_enough)
        if is_wanted(beat):
            return beat


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The memory of a machine with enough of it, to be changed by a test."""
    memory = {"available": 64 * GIB, "total": 128 * GIB}
    monkeypatch.setattr(
        host_memory, "read_memory", lambda: host_memory.HostMemory(memory["available"], memory["total"])
    )
    monkeypatch.setattr(search, "FIRST_COHORT", 4)
    monkeypatch.setattr(search, "COHORT", 8)
    return memory


@pytest.mark.parametrize("settings", [{}, {"max_concurrent_per_process": 4, "entrypoint": "many:sleeps"}])
async def test_without_a_number_slots_are_opened_while_rollouts_run(bus: Bus, settings: dict[str, Any]) -> None:
    agent = {"entrypoint": "plain:works", "concurrency": None, **settings}
    async with bus.fleet("runner") as fleet, running(bus, **agent):
        beat = await seen(fleet, lambda beat: True)
        assert slots_of(beat) == FIRST_SLOTS == slots_metric()
        assert "concurrency adapts (first measurement)" in describe(beat)
        beat = await seen_at_work(bus, fleet, lambda beat: slots_of(beat) > FIRST_SLOTS)
        assert slots_of(beat) <= MAX_SLOTS and "first measurement" not in describe(beat)
        batches = await ended(bus, 60)
        assert all(batch.end is not None and batch.end.outcome == "ok" for batch in batches)


async def test_a_number_stays_that_number(bus: Bus) -> None:
    async with bus.fleet("runner") as fleet, running(bus, entrypoint="plain:works", concurrency=2):
        await publish(bus, 40)
        await ended(bus, 40)
        beat = await seen(fleet, lambda beat: beat.status["done"] == 40)
        assert slots_of(beat) == 2 == slots_metric() and "concurrency" not in beat.status


async def test_a_runner_with_endpoints_keeps_to_the_first_number(bus: Bus) -> None:
    endpoints = {"judge": {"url": "http://127.0.0.1:9/v1"}}
    async with (
        bus.fleet("runner") as fleet,
        running(bus, entrypoint="plain:works", concurrency=None, endpoints=endpoints),
    ):
        await publish(bus, 40)
        await ended(bus, 40)
        beat = await seen(fleet, lambda beat: beat.status["done"] == 40)
        assert slots_of(beat) == FIRST_SLOTS and "concurrency" not in beat.status


async def test_a_full_memory_takes_slots_and_their_agents_and_gives_them_back(bus: Bus, plenty: dict[str, int]) -> None:
    plenty["available"] = GIB
    async with bus.fleet("runner") as fleet, running(bus, entrypoint="plain:works", concurrency=None):
        await seen(fleet, lambda beat: True)
        assert num_agents() == FIRST_SLOTS
        await seen_at_work(bus, fleet, lambda beat: slots_of(beat) == 3 and "memory is short" in describe(beat))
        await seen_at_work(bus, fleet, lambda beat: num_agents() < FIRST_SLOTS)
        plenty["available"] = 64 * GIB
        await seen_at_work(bus, fleet, lambda beat: slots_of(beat) >= FIRST_SLOTS)


async def test_an_agent_that_starts_no_further_process_keeps_the_slots_it_has(bus: Bus, tmp_path: Path) -> None:
    """As a licence for four would."""
    (tmp_path / "licensed.py").write_text(
        "import fcntl, time\n"
        "for number in range(4):\n"
        f"    lock = open(f'{tmp_path}/lock{{number}}', 'w')\n"
        "    try:\n"
        "        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "        break\n"
        "    except OSError:\n"
        "        pass\n"
        "else:\n"
        "    raise SystemExit('all licences are in use')\n"
        "def solve(task):\n"
        "    time.sleep(0.1)\n"
        "    return 1.0\n"
    )
    agent = {"entrypoint": "licensed:solve", "working_dir": tmp_path, "concurrency": None}
    async with bus.fleet("runner") as fleet, running(bus, **agent):
        beat = await seen_at_work(bus, fleet, lambda beat: "no more agents" in describe(beat))
        assert slots_of(beat) <= FIRST_SLOTS
        batches = await ended(bus, 60)
        assert all(batch.end is not None and batch.end.outcome == "ok" for batch in batches)
