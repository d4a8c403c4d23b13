"""Turns: one node swaps at a time, whoever dies; the decision by itself, then nodes on a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import PublishTimeoutError
from lightningbus.bus.fleet.node_state import DEAD_SECONDS
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference.weights import swap_lock
from lightningbus.inference.weights.swap_lock import SwapLock, is_free
from lightningbus.inference.weights.updater import WeightUpdater
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import SwapLockState, WeightsActivated
from tests.inference.test_updater import Engine, publish
from tests.polling import HANG_SECONDS

NODES = range(4)
NODE = st.sampled_from(NODES)


class Simulation:
    """Nodes with clocks of their own, a subject with compare-and-set, and time that passes for all."""

    def __init__(self, skews: list[float]) -> None:
        self.now, self.skews = 1000.0, skews
        self.alive, self.holds = [True] * len(NODES), [False] * len(NODES)
        self.beats = [self.beat(node, "ready") for node in NODES]
        self.heard_at = [self.now] * len(NODES)
        self.turn: SwapLockState | None = None
        self.changed = self.now

    def clock(self, node: int) -> int:
        return int((self.now + self.skews[node]) * 1e9)

    def beat(self, node: int, state: str) -> Heartbeat:
        return Heartbeat(role="inference", id=str(node), state=state, sent_at_ns=self.clock(node))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for node in NODES:
            if self.alive[node]:
                self.beats[node], self.heard_at[node] = self.beat(node, self.beats[node].state), self.now

    def say(self, node: int, over: bool) -> None:
        self.turn, self.changed = (
            SwapLockState(model="m", node=str(node), released=over, acquired_at_ns=self.clock(node)),
            self.now,
        )

    def take(self, node: int) -> bool:
        holder = int(self.turn.node) if self.turn is not None else node
        beat = self.beats[holder] if self.now - self.heard_at[holder] < DEAD_SECONDS else None
        if self.alive[node] and not self.holds[node] and is_free(self.turn, str(node), beat, self.now - self.changed):
            self.say(node, over=False)
            self.holds[node] = True
            return True
        return False

    def give_back(self, node: int) -> None:
        if self.holds[node]:
            self.holds[node] = False
            if self.turn is not None and self.turn.node == str(node):
                self.say(node, over=True)

    def die(self, node: int) -> None:
        self.alive[node] = self.holds[node] = False

    def start(self, node: int) -> None:
        """Again, under the same name: it says so, and gives back what its earlier life has left."""
        self.alive[node], self.heard_at[node] = True, self.now
        self.beats[node] = self.beat(node, "starting")

    def be_up(self, node: int) -> None:
        self.beats[node] = self.beat(node, "ready")
        if self.turn is not None and self.turn.node == str(node) and not self.turn.released:
            self.say(node, over=True)


class Taking(RuleBasedStateMachine):
    """Nodes take turns, give them back, die amid one and come back, in any order."""

    @initialize(skews=st.lists(st.floats(-1000, 1000), min_size=len(NODES), max_size=len(NODES)))
    def begun(self, skews: list[float]) -> None:
        self.simulation = Simulation(skews)

    @rule(seconds=st.floats(0.001, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.simulation.pass_time(seconds)

    @rule(node=NODE)
    def wants_it(self, node: int) -> None:
        if self.simulation.beats[node].state == "ready":
            self.simulation.take(node)

    @rule(node=NODE)
    def is_done(self, node: int) -> None:
        self.simulation.give_back(node)

    @rule(node=NODE)
    def dies(self, node: int) -> None:
        self.simulation.die(node)

    @rule(node=NODE)
    def starts(self, node: int) -> None:
        if not self.simulation.alive[node]:
            self.simulation.start(node)

    @rule(node=NODE)
    def is_up(self, node: int) -> None:
        if self.simulation.alive[node] and self.simulation.beats[node].state == "starting":
            self.simulation.be_up(node)

    @invariant()
    def one_at_a_time(self) -> None:
        if hasattr(self, "simulation"):
            assert sum(self.simulation.holds) <= 1


TestTaking = Taking.TestCase


@given(
    skews=st.lists(st.floats(-1000, 1000), min_size=len(NODES), max_size=len(NODES)),
    fates=st.lists(st.sampled_from(["swaps", "dies", "comes back"]), min_size=len(NODES), max_size=len(NODES)),
    order=st.permutations(list(NODES)),
)
def test_nobody_waits_for_ever(skews: list[float], fates: list[str], order: list[int]) -> None:
    """Every node that lives gets its turn, within the time it takes to find each of the others dead."""
    simulation, done, began = Simulation(skews), set[int](), {}
    for _ in range(int((DEAD_SECONDS + 5) * len(NODES))):
        simulation.pass_time(1.0)
        for node in order:
            if simulation.holds[node] and simulation.now - began[node] >= 2:
                if fates[node] == "swaps":
                    simulation.give_back(node)
                    done.add(node)
                else:
                    simulation.die(node)
                    if fates[node] == "comes back":
                        simulation.start(node)
            if node not in done and simulation.beats[node].state == "ready" and simulation.take(node):
                began[node] = simulation.now
    assert done == {node for node in NODES if fates[node] == "swaps"}


@asynccontextmanager
async def nodes(bus: Bus, directory: Path, engines: dict[str, Engine]) -> AsyncIterator[dict[str, WeightUpdater]]:
    """Nodes that follow, each with its own connection and heartbeats."""
    async with AsyncExitStack() as exits:
        by_name: dict[str, WeightUpdater] = {}
        running = []
        for name, engine in engines.items():
            await exits.enter_async_context(
                bus.heartbeat("inference", name, lambda: {"state": "ready", "model": "policy"})
            )
            by_name[name] = WeightUpdater(bus, name, "policy", directory / name, engine)
            running.append(asyncio.create_task(by_name[name].run()))
        try:
            yield by_name
        finally:
            await cancel_and_wait(*running)


class Rolling(Engine):
    """Notes how many of its kind stand still at once."""

    away, most, swaps = 0, 0, 0

    async def load_files(self, files: Any, version: int, change: float | None = None, fingerprint: str = "") -> float:
        kind, serving = type(self), bool(self.loaded)
        kind.away += serving
        kind.most = max(kind.most, kind.away)
        kind.swaps += serving
        for _ in range(20):  # the others have every chance to begin, too
            await asyncio.sleep(0.001)
        kind.away -= serving
        return await super().load_files(files, version, change, fingerprint)


async def test_nodes_of_different_models_swap_at_once(bus: Bus) -> None:
    async with (
        SwapLock(bus, "a", "writer") as writer,
        SwapLock(bus, "b", "checker") as checker,
        asyncio.timeout(HANG_SECONDS),
        writer.hold(),
        checker.hold(),
    ):
        locks = [
            await bus.get_last(subjects.WEIGHTS, subjects.swap_lock(name), SwapLockState)
            for name in ("writer", "checker")
        ]
    assert [(last[0].node, last[0].released) for last in locks if last] == [("a", False), ("b", False)]


async def test_nodes_roll_one_after_the_other_and_who_joins_catches_up(bus: Bus, tmp_path: Path) -> None:
    engines: dict[str, Engine] = {f"n{number}": Rolling() for number in range(3)}
    Rolling.most = Rolling.swaps = 0
    async with nodes(bus, tmp_path, engines):
        for version in range(5):  # each node loads each version: one that skips the first has a swap less
            await publish(bus, tmp_path, version)
            for engine in engines.values():
                await engine.holds(version)
        late: dict[str, Engine] = {"late": Rolling()}
        async with nodes(bus, tmp_path, late):
            await late["late"].holds(4)
            await publish(bus, tmp_path, 5)
            for engine in (*engines.values(), *late.values()):
                await engine.holds(5)
    assert (Rolling.most, Rolling.swaps) == (1, 4 * 3 + 4), "never more than one of those that serve"


async def test_the_turn_of_a_node_that_was_killed_is_void_once_it_is_dead(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap_lock, "DEAD_SECONDS", 1.0)
    engines = {"a": Engine(), "b": Engine()}
    await publish(bus, tmp_path, 0)
    async with nodes(bus, tmp_path, engines):
        for engine in engines.values():
            await engine.holds(0)
        last = await bus.get_last(subjects.WEIGHTS, subjects.swap_lock("policy"), SwapLockState)
        ghost = SwapLockState(model="policy", node="ghost", acquired_at_ns=1)
        await bus.publish(subjects.swap_lock("policy"), ghost, msg_id="ghost", expect_last=last[1] if last else 0)
        await publish(bus, tmp_path, 1)
        for engine in engines.values():
            await engine.holds(1)


async def test_a_node_gives_back_what_its_earlier_life_has_left(bus: Bus) -> None:
    left = SwapLockState(model="policy", node="a", acquired_at_ns=1)
    await bus.publish(subjects.swap_lock("policy"), left, msg_id="left", expect_last=0)
    async with SwapLock(bus, "a", "policy") as lock, SwapLock(bus, "b", "policy") as other:
        await lock.release_stale()
        async with asyncio.timeout(HANG_SECONDS), other.hold():
            last = await bus.get_last(subjects.WEIGHTS, subjects.swap_lock("policy"), SwapLockState)
        assert last is not None and last[0].node == "b"


async def test_every_applied_version_is_announced_with_its_seconds(bus: Bus, tmp_path: Path) -> None:
    engine = Engine()
    await publish(bus, tmp_path, 0)
    async with nodes(bus, tmp_path, {"a": engine}):
        await engine.holds(0)
        async with asyncio.timeout(HANG_SECONDS):
            while (last := await bus.get_last(subjects.WEIGHTS, subjects.activated("a"), WeightsActivated)) is None:
                await asyncio.sleep(0.01)
    applied = last[0]
    assert applied.version == 0 and applied.fetch_seconds > 0 and applied.verify_seconds > 0


class Deaf:
    """A bus on which the stream has what is published, and the publisher does not hear of it, once."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self.deaf = bus, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, *arguments: Any, **more: Any) -> int:
        sequence = await self._bus.publish(*arguments, **more)
        if self.deaf:
            self.deaf = False
            raise PublishTimeoutError("nobody answered")
        return sequence


async def test_a_turn_that_was_taken_without_an_answer_is_given_back(bus: Bus) -> None:
    async with SwapLock(Deaf(bus), "n0", "policy") as lock:  # type: ignore[arg-type]
        await lock.release_stale()
        with pytest.raises(PublishTimeoutError):
            async with lock.hold():
                raise AssertionError("it was not told that it is its turn")
        await lock.release_stale()
    last = await bus.get_last(subjects.WEIGHTS, subjects.swap_lock("policy"), SwapLockState)
    assert last is not None and last[0].node == "n0" and last[0].released


@pytest.mark.parametrize("num_before", [0, 3], ids=["stored without an answer", "an older copy of the bus"])
async def test_a_node_that_is_alone_finds_its_lock_under_another_sequence(
    bus: Bus, caplog: pytest.LogCaptureFixture, num_before: int
) -> None:
    """A bus that was cut off may have the node's message twice, or less than the node knows."""
    subject = subjects.swap_lock("policy")
    for number in range(num_before):
        await bus.publish(
            subject, SwapLockState(model="policy", node="b", released=True, acquired_at_ns=number), msg_id=f"b{number}"
        )
    async with SwapLock(bus, "a", "policy") as lock:
        await lock.release_stale()
        async with lock.hold():
            last = await bus.get_last(subjects.WEIGHTS, subject, SwapLockState)
            assert last is not None
            if num_before:
                await bus.js.delete_msg(subjects.WEIGHTS, last[1])
            else:
                await bus.publish(subject, last[0], msg_id="again")
    last = await bus.get_last(subjects.WEIGHTS, subject, SwapLockState)
    assert last is not None and last[0].released
    assert not caplog.messages, "no other node has it"
