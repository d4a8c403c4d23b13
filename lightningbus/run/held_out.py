"""Evaluations of a training job: before and after training, and of chosen versions while it goes on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from clickhouse_connect.driver.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from bus.errors import BusError
from bus.fleet.node_state import is_ready, serves_version
from bus.task_file import TaskInput
from bus.weights.registry import WeightRegistry
from common.aio import first_completed
from lightningbus.run.evaluation import NODE_SECONDS, SAMPLINGS, Evaluation, evaluate
from lightningbus.run.pinned_version import TRAIN_ACTOR, find_pin
from lightningbus.run.settings import EvalSettings
from lightningbus.run.stack import LocalStack
from schemas import subjects
from schemas.weights.events import ReleaseState, WeightManifest
from schemas.weights.release_policy import is_servable

log = logging.getLogger(__name__)

RECHECK_SECONDS = 5.0
"""How often versions are looked up without a notification: a canary may have approved one."""


def choose_due_versions(published: Iterable[int], evaluated: Iterable[int], every: int) -> list[int]:
    """The versions to evaluate, oldest first: the first published one at or after each multiple of ``every``. Pure.

    Version 0 is evaluated before training. A multiple itself may be missing: versions are published every few steps,
    and a learner that starts again skips numbers.
    """
    covered = {version // every for version in evaluated} | {0}
    due: dict[int, int] = {}
    for version in sorted(published):
        if version // every not in covered:
            due.setdefault(version // every, version)
    return list(due.values())


async def evaluate_once_served(
    stack: LocalStack,
    client: Client,
    run: str,
    settings: EvalSettings,
    problems: Sequence[TaskInput],
    sampling: str,
    version: int,
    label_prefix: str = "",
) -> Evaluation:
    """Answer the problems under a version as ``sampling`` of `SAMPLINGS` says, once a node serves it.

    Raises `UserError` when a process of the run fails for good, or no node serves the version in time.
    """
    await stack.wait_for_member(
        lambda beat: beat.role == "inference" and is_ready(beat.state) and serves_version(beat, version),
        f"node with version {version}",
        NODE_SECONDS,
    )
    work = evaluate(
        stack.bus,
        client,
        run,
        problems,
        label=label_prefix + sampling,
        version=version,
        samples=settings.samples if sampling == "sampled" else 1,
        sampling=SAMPLINGS[sampling],
        deadline=settings.deadline,
        agent=settings.agent,
    )
    return await stack.or_child_failure(work)


class HeldOut:
    """The held-out problems of a job, answered by versions of its model."""

    def __init__(
        self,
        stack: LocalStack,
        client: Client,
        run: str,
        settings: EvalSettings,
        model: str,
        problems: list[TaskInput],
        evaluations: Iterable[Evaluation],
        on_evaluation: Callable[[Evaluation], Awaitable[None]],
    ) -> None:
        """``evaluations``: those of earlier starts; ``on_evaluation`` is called with each new one."""
        self._stack, self._client, self._run, self._settings, self._model = stack, client, run, settings, model
        self._problems, self._on_evaluation = problems, on_evaluation
        self._ended = {(evaluation.label, evaluation.version) for evaluation in evaluations}
        self._releases = WeightRegistry(stack.bus, model)
        self._actor = f"{TRAIN_ACTOR}{run}"

    def is_complete(self, version: int) -> bool:
        """Whether the version has been evaluated in every way."""
        return all((label, version) in self._ended for label in SAMPLINGS)

    async def evaluate(self, version: int) -> None:
        """Evaluate a version that nodes serve until then; what has ended already is not done again."""
        for label in SAMPLINGS:
            if (label, version) in self._ended:
                continue
            evaluation = await evaluate_once_served(
                self._stack, self._client, self._run, self._settings, self._problems, label, version
            )
            self._ended.add((label, version))
            await self._on_evaluation(evaluation)

    async def follow_training(self, every: int, is_over: asyncio.Event) -> None:
        """Evaluate every ``every``-th version as it is published, until training is over and none is due.

        Nodes load one version at a time. So they are pinned to the version until its evaluation has ended.
        """
        subject, changed = subjects.weights(self._model), asyncio.Event()

        async def on_version(message: Msg) -> None:
            changed.set()

        subscription = await self._stack.bus.nc.subscribe(subject, cb=on_version)
        try:
            while True:
                changed.clear()
                was_over = is_over.is_set()
                try:
                    version = await self._pin_due(every, was_over)
                except (BusError, NatsError) as error:
                    log.warning("no version can be chosen for evaluation now: %s", str(error) or type(error).__name__)
                    await asyncio.sleep(RECHECK_SECONDS)
                    continue
                if version is not None:
                    await self.evaluate(version)
                elif was_over:
                    return
                else:
                    await first_completed(changed.wait(), is_over.wait(), asyncio.sleep(RECHECK_SECONDS))
        finally:
            with suppress(BusError, NatsError):
                await self.unpin()
                await subscription.unsubscribe()

    async def _pin_due(self, every: int, is_over: bool) -> int | None:
        """Pin the next version to evaluate and return it; unpin and return None if there is none."""
        release = await self._releases.refresh()
        if release.pinned is not None and not self._is_own_pin(release):
            return None
        due = await self._find_due(release, every, is_over)
        if not due:
            await self.unpin()
            return None
        if release.pinned != due[0]:
            reason = "held-out problems are being answered"
            await self._releases.append_decision("pinned", due[0], actor=self._actor, reason=reason)
        return due[0]

    async def _find_due(self, release: ReleaseState, every: int, is_over: bool) -> list[int]:
        """The versions to evaluate now, oldest first; without the last one, which is evaluated after."""
        evaluated = {version for _, version in self._ended if self.is_complete(version)}
        published: dict[int, WeightManifest] = {}
        async for manifest, _ in self._releases.list_versions():
            published.setdefault(manifest.version, manifest)
            if manifest.version // every <= max(evaluated, default=0) // every:
                break
        last = max(published, default=0)
        servable = [
            version
            for version, manifest in published.items()
            if is_servable(release, manifest) and not (is_over and version == last)
        ]
        due = choose_due_versions(servable, evaluated, every)
        return [version for version in due if not await self._releases.find_expired_blob(published[version])]

    async def unpin(self) -> None:
        """Let nodes follow the newest version again, unless somebody else has pinned one."""
        release = await self._releases.refresh()
        if release.pinned is not None and self._is_own_pin(release):
            await self._releases.append_decision("unpinned", release.pinned, actor=self._actor)

    def _is_own_pin(self, release: ReleaseState) -> bool:
        pin = find_pin(release)
        return pin is not None and pin.actor == self._actor
