"""A learner that is stopped again and again, with a real broker and trainer: what it trains then, on which weights."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import HeartbeatPublisher
from lightningbus.bus.streams.specs import STORE_EVENTS, runner_consumer
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait, first_completed
from lightningbus.learner.learner import run as run_learner
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.spans import VersionSpan
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.training import TaskDecision, TrainingStep
from lightningbus.schemas.weights.events import WeightManifest
from tests.factories import batches
from tests.learner.conftest import settings_for, write_tasks
from tests.polling import HANG_SECONDS

SAMPLES, BOUND, STEPS, NUM_STOPS = 2, 1, 7, 3
GROUPS = 2
SLOW_SECONDS = 1.0

T = TypeVar("T", bound="Training")


@dataclass
class Training:
    """What a run with lives of a learner has said."""

    bus: Bus
    rng: random.Random
    steps: list[TrainingStep] = field(default_factory=list)
    dispatched: set[str] = field(default_factory=set)
    decisions: list[TaskDecision] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_agents(self) -> None:
        """Answer each task by the newest version; one in six takes as long as some training steps."""
        async with (
            self.bus.pull(runner_consumer("default", "train"), slots=8) as puller,
            asyncio.TaskGroup() as rollouts,
        ):
            async for message in puller:
                task = message.decode_as(Task)
                self.dispatched.add(task.id)
                version = await self._newest_version()
                await message.ack()
                seconds = SLOW_SECONDS if self.rng.random() < 1 / 6 else 0.0
                rollouts.create_task(self._answer(task, version, seconds))

    async def _newest_version(self) -> int:
        return (await anext(aiter(WeightRegistry(self.bus, "policy").list_versions())))[0].version

    async def _answer(self, task: Task, version: int, seconds: float) -> None:
        """A rollout of one call, of tokens and a reward that follow from its id."""
        await asyncio.sleep(seconds)  # as long as the agent takes
        rng = random.Random(task.id + str(task.sample_index))
        (batch,) = batches(
            task.id, task.sample_index, self.choose_reward(task, rng), parts=1, run=task.run_id, samples=task.group_size
        )
        assert batch.spans[0].call is not None
        tokens = [rng.randrange(64) for _ in range(3)]
        call = replace(
            batch.spans[0].call,
            response_ids=array("I", tokens).tobytes(),
            weight_versions=(VersionSpan(version=version, start=0, end=3),),
        )
        sent = replace(batch, spans=(replace(batch.spans[0], call=call),))
        await self.bus.publish(subjects.rollout("train"), sent, msg_id=f"{task.id}:{task.sample_index}")

    def choose_reward(self, task: Task, rng: random.Random) -> float:
        return rng.random()

    async def listen(self) -> None:
        """Every step on the bus."""
        async with self.bus.pull(with_fields(STORE_EVENTS, durable="listener"), slots=8) as puller:
            async for message in puller:
                event = message.event()
                await message.ack()
                if isinstance(event, TaskDecision):
                    self.decisions.append(event)
                if isinstance(event, TrainingStep):
                    self.steps.append(event)
                    self.news.set()

    async def steps_made(self, num_steps: int) -> None:
        """Wait until so many steps were said, those made again included."""
        while len(self.steps) < num_steps:
            self.news.clear()
            await self.news.wait()

    @property
    def kept(self) -> list[TrainingStep]:
        """The steps, less those that a later life undid: as the store's view has them."""
        first = dict[int, int]()
        for event in self.steps:
            first[event.epoch] = min(first.get(event.epoch, event.step), event.step)
        return [
            event
            for event in self.steps
            if not any(epoch > event.epoch and event.step >= step for epoch, step in first.items())
        ]


@asynccontextmanager
async def training(bus: Bus, seed: int) -> AsyncIterator[Training]:
    async with running(Training(bus, random.Random(seed))) as run:
        yield run


@asynccontextmanager
async def running(run: T) -> AsyncIterator[T]:
    bus = run.bus
    await bus.ensure_consumer(runner_consumer("default", "train"))
    await bus.ensure_consumer(with_fields(STORE_EVENTS, durable="listener"))
    tasks = [asyncio.create_task(work) for work in (run.run_agents(), run.listen())]
    try:
        yield run
    finally:
        await cancel_and_wait(*tasks)


async def live(url: str, settings: LearnerSettings, stop: asyncio.Event, killed: Any) -> None:
    """One life of a learner: to its last step, until it is asked to ``stop``, or until it is ``killed``."""
    async with Bus.connect(url, name="learner") as bus:
        await first_completed(run_learner(bus, settings, stop), killed)


async def train_in_lives(url: str, settings: LearnerSettings, run: Training, num_stops: int) -> None:
    """Train to the last step, and kill and stop the learner in turns before; return once the last step is published."""
    for number in range(num_stops):
        stop = asyncio.Event()
        life = asyncio.create_task(live(url, settings, stop, run.steps_made(len(run.steps) + 2)))
        if number % 2:
            await run.steps_made(len(run.steps) + 1)
            stop.set()
        await life
    await live(url, settings, asyncio.Event(), asyncio.Event().wait())
    async with asyncio.timeout(HANG_SECONDS):
        while not any(event.step == settings.max_steps for event in run.kept):
            await run.steps_made(len(run.steps) + 1)


@pytest.mark.parametrize("interval", [1, 3, None])
@pytest.mark.timeout(600)
async def test_steps_since_the_checkpoint_are_made_again_and_no_token_is_beyond_the_bound(
    bus: Bus, nats_url: str, model_path: Path, tmp_path: Path, interval: int | None
) -> None:
    write_tasks(tmp_path / "tasks.jsonl", 40)
    settings = settings_for(
        model_path, tasks=tmp_path / "tasks.jsonl", checkpoint_dir=tmp_path / "checkpoints", group_size=SAMPLES,
        groups_per_step=2, max_steps=STEPS, max_staleness=BOUND, checkpoint_interval=interval,
    )  # fmt: skip
    async with training(bus, interval or 0) as run:
        await train_in_lives(nats_url, settings, run, NUM_STOPS)
        manifests = [manifest async for manifest, _ in WeightRegistry(bus, "policy").list_versions()][::-1]
    kept = run.kept
    assert [event.step for event in kept if event.batch_sha256] == [*range(1, STEPS + 1)]
    assert all(event.version == event.step for event in kept), "a version is the number of updates"
    ages = find_ages(kept)
    assert min(ages) >= 0 and max(ages) <= BOUND
    trained = [use.rollout_id for event in kept for use in event.rollouts if use.trained]
    assert len(trained) == len(set(trained)) == STEPS * 2 * SAMPLES
    assert {use.task_id for event in kept for use in event.rollouts} == run.dispatched, "nothing is left"
    for step in range(1, STEPS + 1):
        digests = {event.batch_sha256 for event in run.steps if event.step == step}
        assert len(digests) == 1, f"step {step} was made again of other rollouts"
    check_versions(manifests)
    if interval == 3:
        assert len(run.steps) > len(kept), "steps were made again"


def find_ages(steps: list[TrainingStep]) -> list[int]:
    """The staleness of each span of tokens that was trained."""
    return [
        event.version - 1 - version
        for event in steps
        for use in event.rollouts
        for version, num_tokens in use.version_tokens
        if use.trained and num_tokens
    ]


def check_versions(manifests: list[WeightManifest]) -> None:
    """Each version is one file, under whatever epoch; and versions only grow."""
    by_version: dict[int, set[str]] = {}
    for manifest in manifests:
        by_version.setdefault(manifest.version, set()).add(manifest.fingerprint)
    assert all(len(fingerprints) == 1 for fingerprints in by_version.values())
    versions = [manifest.version for manifest in manifests]
    assert versions == sorted(versions) and by_version.keys() == {*range(STEPS + 1)}


@dataclass
class WithNode(Training):
    """A training whose tasks are answered by the one version of a node, and only while it serves."""

    state: str = "ready"
    version: int = 0
    is_following: bool = True
    """Whether the node goes on to each new version."""
    num_old: int = 0
    """Tasks answered while it does not."""
    serves: asyncio.Event = field(default_factory=asyncio.Event)
    may_swap: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the learner waits for a newer version, or has had as much by the present one as it may ask for."""

    async def _newest_version(self) -> int:
        await self.serves.wait()
        if not self.is_following:
            self.num_old += 1
            if self.num_old == (BOUND + 1) * GROUPS * SAMPLES:
                self.may_swap.set()
        return self.version

    @asynccontextmanager
    async def node(self) -> AsyncIterator[HeartbeatPublisher]:
        """The node's heartbeats, and its swaps."""
        async with self.bus.heartbeat("inference", "n0", self._describe) as heartbeat:

            async def swap(message: Any) -> None:
                if self.is_following:
                    self.version = await super(WithNode, self)._newest_version()
                    await heartbeat.send_now()

            subscription = await self.bus.nc.subscribe(subjects.weights("policy"), cb=swap)
            try:
                yield heartbeat
            finally:
                await subscription.unsubscribe()

    def _describe(self) -> dict[str, Any]:
        return {"state": self.state, "model": "policy", "version": self.version if self.state == "ready" else None}

    async def see_learner_wait(self) -> None:
        async with self.bus.fleet("learner") as learners:
            while not any("a node that serves" in str(beat.status.get("waits for")) for beat in learners.members()):
                await learners.wait_for_change()
        self.may_swap.set()

    async def has_dispatched(self) -> None:
        """Let the learner dispatch all that it may: wait for two of its heartbeats."""
        async with self.bus.fleet("learner") as learners:
            for _ in range(2):
                await learners.wait_for_change()

    async def all_taken(self) -> None:
        """Wait until the agents have all tasks."""
        async with asyncio.timeout(HANG_SECONDS):
            while (await self.bus.stream_state(subjects.TASKS)).num_messages:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_pinned", [False, True], ids=["chosen before", "pinned"])
@pytest.mark.timeout(300)
async def test_no_token_is_beyond_the_bound_where_a_node_starts_with_an_older_version_than_the_newest(
    bus: Bus, nats_url: str, model_path: Path, tmp_path: Path, is_pinned: bool
) -> None:
    """All processes start again at once. The learner has rollouts for a step before a node serves."""
    write_tasks(tmp_path / "tasks.jsonl", 40)
    settings = settings_for(
        model_path, tasks=tmp_path / "tasks.jsonl", checkpoint_dir=tmp_path / "checkpoints", group_size=SAMPLES,
        groups_per_step=GROUPS, max_steps=STEPS, max_staleness=BOUND, checkpoint_interval=1,
    )  # fmt: skip
    releases = WeightRegistry(bus, "policy")
    async with running(WithNode(bus, random.Random(1))) as run:
        run.serves.set()
        async with run.node():
            await live(nats_url, settings, asyncio.Event(), run.steps_made(1))
            await run.all_taken()
        run.serves.clear()
        run.is_following = False
        run.version = (await anext(aiter(releases.list_versions())))[0].version
        if is_pinned:
            await releases.append_decision("pinned", run.version, actor="test")
        async with AsyncExitStack() as exits:
            if not is_pinned:
                run.state = "starting"
                await exits.enter_async_context(run.node())
            last = asyncio.create_task(live(nats_url, settings, asyncio.Event(), asyncio.Event().wait()))
            waiting = asyncio.create_task(run.see_learner_wait())
            await run.steps_made(len(run.steps) + 2)  # one is that of the checkpoint, published again
            await run.has_dispatched()
            run.state = "ready"
            if is_pinned:
                heartbeat = await exits.enter_async_context(run.node())
                await heartbeat.send_now()
            run.serves.set()
            await run.may_swap.wait()
            await releases.append_decision("unpinned", run.version, actor="test")
            run.is_following = True
            run.version = (await anext(aiter(releases.list_versions())))[0].version
            await last
            await cancel_and_wait(waiting)
            async with asyncio.timeout(HANG_SECONDS):
                while not any(event.step == STEPS for event in run.kept):
                    await run.steps_made(len(run.steps) + 1)
        assert max(find_ages(run.kept)) == BOUND
