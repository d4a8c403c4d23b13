"""The number of slots as a runner applies it: relief, agents that start slowly or never, and agents that stay warm."""

import asyncio

import pytest

from lightningbus.common.processes import host_memory
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.concurrency import adaptation
from lightningbus.runners.concurrency.adaptation import ConcurrencyAdaptation, RolloutTimer
from lightningbus.runners.concurrency.pressure import FULL_NODES, NO_MEMORY, NUM_SAMPLES, NodeLoad
from lightningbus.runners.concurrency.search import FIRST_SLOTS

GIB = 2**30


class Clock:
    """A clock that a test sets, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class FakeRunner:
    """A runner of which a test says how many rollouts run, and how agents start."""

    def __init__(self) -> None:
        self.timer = RolloutTimer()
        self.num_open, self.num_busy = FIRST_SLOTS, FIRST_SLOTS
        self.load: NodeLoad | None = None
        self.resized_to: list[int] = []
        self.trimmed_to: list[int] = []
        self.max_agents = 256
        self.num_samples = 0
        self.agents_start = asyncio.Event()
        self.agents_start.set()
        self.adaptation = ConcurrencyAdaptation(
            self.timer, self.resize, self.trim, lambda: self.num_busy, self.find_load, self.measure_slot
        )

    def find_load(self) -> NodeLoad | None:
        self.num_samples += 1
        return self.load

    async def resize(self, num_slots: int) -> None:
        self.resized_to.append(num_slots)
        await self.agents_start.wait()
        if num_slots > self.max_agents:
            raise AgentStartError("no licence")
        self.num_open = num_slots

    async def trim(self, num_warm: int) -> None:
        self.trimmed_to.append(num_warm)

    async def measure_slot(self) -> float:
        return 0.0

    def run_cohort(self, clock: Clock, seconds: float = 1.0) -> None:
        """Let so many rollouts run at once, again and again, that a measurement is there."""
        for _ in range(64):
            numbers = [self.timer.meter.begin(clock.now) for _ in range(self.num_open)]
            clock.now += seconds
            for number in numbers:
                self.timer.meter.end(number, clock.now, "whole")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The memory of a machine with enough of it, to be changed by a test."""
    values = {"available": 64 * GIB}
    monkeypatch.setattr(
        host_memory, "read_memory", lambda: host_memory.HostMemory(values["available"], total_bytes=128 * GIB)
    )
    monkeypatch.setattr(adaptation, "SAMPLE_SECONDS", 0.01)
    return values


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, memory: dict[str, int]) -> Clock:
    """The clock of the adaptation."""
    clock = Clock()
    monkeypatch.setattr(adaptation, "time", clock)
    return clock


async def grow(runner: FakeRunner, clock: Clock) -> None:
    """Measure, and begin the trial of twice as many slots."""
    runner.timer.meter.restart(8)
    runner.run_cohort(clock)
    await runner.adaptation.look()


async def test_an_idle_runner_gives_up_no_slots_for_the_memory_that_others_take(
    clock: Clock, memory: dict[str, int]
) -> None:
    runner = FakeRunner()
    memory["available"], runner.num_busy = GIB, 2
    for _ in range(20):
        clock.now += 10
        await runner.adaptation.look()
    assert runner.adaptation.num_slots == FIRST_SLOTS
    runner.num_busy = 3
    await runner.adaptation.look()
    assert (runner.adaptation.num_slots, runner.adaptation.reason) == (3, NO_MEMORY)


async def test_a_queue_at_the_nodes_leaves_the_first_slots_and_counts_once_a_look(clock: Clock) -> None:
    runner = FakeRunner()
    await grow(runner, clock)
    assert runner.adaptation.num_slots == 2 * FIRST_SLOTS == runner.num_open
    runner.num_busy, runner.load = runner.num_open, NodeLoad(100, 64)
    for _ in range(NUM_SAMPLES - 1):
        await runner.adaptation.look()
    assert runner.adaptation.num_slots == 2 * FIRST_SLOTS
    await runner.adaptation.look()
    assert (runner.adaptation.num_slots, runner.adaptation.reason) == (6, FULL_NODES)
    for _ in range(10 * NUM_SAMPLES):
        clock.now += 1
        runner.num_busy = runner.num_open
        await runner.adaptation.look()
    assert runner.adaptation.num_slots == FIRST_SLOTS


async def test_where_no_agent_starts_the_slots_stay_and_no_agent_beyond_them(clock: Clock) -> None:
    runner = FakeRunner()
    runner.max_agents = FIRST_SLOTS
    await grow(runner, clock)
    assert runner.resized_to == [2 * FIRST_SLOTS]
    assert (runner.adaptation.num_slots, runner.adaptation.reason) == (FIRST_SLOTS, adaptation.NO_AGENTS)
    await runner.adaptation.look()
    assert runner.trimmed_to[-1] == FIRST_SLOTS


async def test_memory_that_becomes_short_while_agents_start_ends_the_step(clock: Clock, memory: dict[str, int]) -> None:
    runner = FakeRunner()
    runner.agents_start.clear()
    growing = asyncio.create_task(grow(runner, clock))
    while not runner.resized_to:
        await asyncio.sleep(0)
    memory["available"] = GIB
    await growing
    assert (runner.adaptation.num_slots, runner.adaptation.reason) == (FIRST_SLOTS, NO_MEMORY)
    assert runner.num_open == FIRST_SLOTS


async def test_after_a_refused_trial_its_agents_end(clock: Clock) -> None:
    runner = FakeRunner()
    await grow(runner, clock)
    await runner.adaptation.look()
    assert runner.trimmed_to[-1] == 2 * FIRST_SLOTS
    runner.run_cohort(clock, seconds=2.5)
    await runner.adaptation.look()
    assert runner.num_open == runner.adaptation.num_slots == FIRST_SLOTS
    assert runner.num_samples == 3, "a look adds one, also a look with a measurement"
    await runner.adaptation.look()
    assert runner.trimmed_to[-1] == FIRST_SLOTS
