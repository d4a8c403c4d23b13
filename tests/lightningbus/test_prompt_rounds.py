"""When a training job optimises prompts, and under which weights: on a real bus, with rounds that only note that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.evaluation.pinned_version import VersionPins
from lightningbus.run.evaluation.version_turns import take_turns
from lightningbus.run.jobs.prompt_rounds import PromptRounds
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.results.prompt_round import PromptRound
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import WeightManifest

pytestmark = pytest.mark.integration


class NotingRunner:
    """Rounds that note what was pinned in each; ``limit``: how many the budget has room for."""

    every = 4

    def __init__(self, limit: int = 100) -> None:
        self.limit, self.pinned = limit, list[int | None]()
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

    async def publish_originals(self, bus: Bus) -> None:
        raise AssertionError("the job does that")

    async def run(
        self, bus: Bus, client: Any, run: str, versions: Mapping[str, int], on_progress: Callable[[str], None]
    ) -> PromptRound | None:
        if self.limit == 0:
            return None
        self.limit -= 1
        self.pinned.append((await WeightRegistry(bus, "policy").refresh()).pinned)
        self.has_begun.set()
        await self.may_end.wait()
        return PromptRound(state="finished", weight_versions=dict(versions), rollouts=7)


class Job:
    """A training job whose nodes hold every version."""

    def __init__(self, stack: LocalStack, exits: AsyncExitStack) -> None:
        self.stack, self._exits, self.rounds = stack, exits, list[PromptRound]()
        self.registry = WeightRegistry(stack.bus, "policy")

    async def publish(self, version: int) -> None:
        """A version, and a node that has it."""
        content = self.stack.directory.path / "content"
        content.write_bytes(b"w")
        blob = await self.stack.bus.object_store.put(subjects.WEIGHT_BUCKET, f"policy-{version}", content)
        manifest = WeightManifest(
            run_id="run", model="policy", version=version, blobs=(blob,), epoch=1, step=version, created_at_ns=1
        )
        await self.stack.bus.publish(subjects.weights("policy"), manifest, msg_id=f"w{version}")
        alive = {"state": "ready", "address": "http://127.0.0.1:1", "model": "policy", "version": version}
        await self._exits.enter_async_context(self.stack.bus.heartbeat("inference", f"node-{version}", lambda: alive))

    async def train(self, runner: NotingRunner, is_over: asyncio.Event) -> None:
        """Take turns, as a job does that is started, or started again."""

        def keep(rounds: list[PromptRound]) -> None:
            self.rounds = list(rounds)

        pins = VersionPins(self.stack.bus, "run", ["policy"])
        rounds = PromptRounds(self.stack, None, "run", pins, runner, self.rounds, keep)  # type: ignore[arg-type]
        await take_turns(self.stack.bus, pins, [rounds], is_over)

    @property
    def states(self) -> list[tuple[int, str]]:
        """Weight version and state of every round."""
        return [(each.weight_versions["policy"], each.state) for each in self.rounds]


@pytest.fixture
async def job(nats_url: str, tmp_path: Path) -> AsyncIterator[Job]:
    """On a bus of its own."""
    with RunDirectory(tmp_path / "run").lock(fresh=True) as directory:
        async with AsyncExitStack() as exits, start_stack(directory, BusSettings(url=nats_url), "a test") as stack:
            yield Job(stack, exits)


def over() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@asynccontextmanager
async def training(job: Job, runner: NotingRunner) -> AsyncIterator[asyncio.Event]:
    """The job amid training, while the block runs; set the event to end it."""
    is_over = asyncio.Event()
    running = asyncio.create_task(job.train(runner, is_over))
    try:
        yield is_over
        is_over.set()
        await running
    finally:
        running.cancel()


async def test_rounds_are_run_before_training_and_at_multiples_under_pinned_weights(job: Job) -> None:
    runner = NotingRunner()
    await job.publish(0)
    await job.train(runner, over())
    assert (runner.pinned, job.states) == ([0], [(0, "finished")])
    assert (await job.registry.refresh()).pinned is None, "nodes go on"

    for version in (1, 2, 3, 5):  # a learner that starts again skips numbers
        await job.publish(version)
    runner.may_end.clear()
    runner.has_begun.clear()
    async with training(job, runner):
        await runner.has_begun.wait()
        await job.publish(6)
        assert (await job.registry.refresh()).pinned == 5, "nodes keep it, though there is a newer one"
        assert job.states == [(0, "finished"), (5, "begun")]
        runner.may_end.set()
    assert (runner.pinned, job.states) == ([0, 5], [(0, "finished"), (5, "finished")])
    assert (await job.registry.refresh()).pinned is None


async def test_a_round_that_was_interrupted_goes_on_under_its_own_weights(job: Job) -> None:
    interrupted, again = NotingRunner(), NotingRunner()
    interrupted.may_end.clear()
    await job.publish(0)
    await job.publish(4)
    running = asyncio.create_task(job.train(interrupted, over()))
    await interrupted.has_begun.wait()
    running.cancel()
    await asyncio.wait({running})
    await job.publish(5)
    assert job.states == [(4, "begun")]
    await job.train(again, over())
    assert (again.pinned, job.states) == ([4], [(4, "finished")])


async def test_a_round_whose_weights_are_gone_is_abandoned_and_the_next_has_the_newest(job: Job) -> None:
    runner = NotingRunner()
    await job.publish(9)
    job.rounds = [PromptRound(state="begun", weight_versions={"policy": 4})]
    await job.train(runner, over())
    assert (runner.pinned, job.states) == ([9], [(4, "abandoned"), (9, "finished")])


async def test_there_are_no_rounds_without_budget_nor_while_somebody_has_pinned_a_version(job: Job) -> None:
    runner = NotingRunner(limit=1)
    await job.publish(0)
    await job.registry.append_decision("pinned", 0, actor="somebody")
    await job.train(runner, over())
    assert (runner.pinned, job.states) == ([], [])
    assert (await job.registry.refresh()).pinned == 0, "it is somebody's"
    await job.registry.append_decision("unpinned", 0, actor="somebody")
    await job.train(runner, over())
    await job.publish(4)
    await job.train(runner, over())
    assert (runner.pinned, job.states) == ([0], [(0, "finished")])
    assert (await job.registry.refresh()).pinned is None
