"""Evaluations of a training job: before and after training, and of chosen versions while it goes on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
from schemas.fleet import Heartbeat
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


@dataclass(frozen=True, slots=True)
class PolicyVersions:
    """One version of each model of a run that is trained."""

    versions: Mapping[str, int]
    main: str
    """The model that agents call by name."""
    role_models: Mapping[str, str]
    """Models that answer for roles of the agent."""
    reward: str = ""
    """Name of the reward that counts, as the main model is trained on it; empty: the main one."""


async def evaluate_once_served(
    stack: LocalStack,
    client: Client,
    run: str,
    settings: EvalSettings,
    problems: Sequence[TaskInput],
    sampling: str,
    policies: PolicyVersions,
    label_prefix: str = "",
) -> Evaluation:
    """Answer the problems under versions as ``sampling`` of `SAMPLINGS` says, once nodes serve them.

    Raises `UserError` when a process of the run fails for good, or no node serves a version in time.
    """
    for model, version in policies.versions.items():

        def serves(beat: Heartbeat, model: str = model, version: int = version) -> bool:
            is_node = beat.role == "inference" and beat.model == model
            return is_node and is_ready(beat.state) and serves_version(beat, version)

        await stack.wait_for_member(serves, f"node with version {version} of {model!r}", NODE_SECONDS)
    work = evaluate(
        stack.bus,
        client,
        run,
        problems,
        label=label_prefix + sampling,
        versions=policies.versions,
        model=policies.main,
        role_models=policies.role_models,
        samples=settings.samples if sampling == "sampled" else 1,
        sampling=SAMPLINGS[sampling],
        deadline=settings.deadline,
        agent=settings.agent,
        reward=policies.reward,
    )
    return await stack.or_child_failure(work)


class HeldOut:
    """The held-out problems of a job, answered by versions of its models."""

    def __init__(
        self,
        stack: LocalStack,
        client: Client,
        run: str,
        settings: EvalSettings,
        models: Sequence[str],
        role_models: Mapping[str, str],
        problems: list[TaskInput],
        evaluations: Iterable[Evaluation],
        on_evaluation: Callable[[Evaluation], Awaitable[None]],
        reward: str = "",
    ) -> None:
        """``models``: those that are trained, the one that agents call by name first.

        ``evaluations``: those of earlier starts; ``on_evaluation`` is called with each new one.
        ``reward`` names the reward that counts; empty: the main one.
        """
        self._stack, self._client, self._run, self._settings = stack, client, run, settings
        self._main, self._role_models, self._reward = models[0], role_models, reward
        self._problems, self._on_evaluation = problems, on_evaluation
        self._ended = {(evaluation.label, _key(evaluation.versions)) for evaluation in evaluations}
        self._releases = {model: WeightRegistry(stack.bus, model) for model in models}
        self._actor = f"{TRAIN_ACTOR}{run}"

    def is_complete(self, versions: Mapping[str, int]) -> bool:
        """Whether these versions, one of each model, have been evaluated in every way."""
        return all((label, _key(versions)) in self._ended for label in SAMPLINGS)

    async def evaluate(self, versions: Mapping[str, int]) -> None:
        """Evaluate versions that nodes serve until then; what has ended already is not done again."""
        policies = PolicyVersions(versions, self._main, self._role_models, self._reward)
        for label in SAMPLINGS:
            if (label, _key(versions)) in self._ended:
                continue
            evaluation = await evaluate_once_served(
                self._stack, self._client, self._run, self._settings, self._problems, label, policies
            )
            self._ended.add((label, _key(versions)))
            await self._on_evaluation(evaluation)

    async def follow_training(self, every: int, is_over: asyncio.Event) -> None:
        """Evaluate every ``every``-th version as it is published, until training is over and none is due.

        Nodes load one version at a time. So they are pinned to the version until its evaluation has ended. With
        several models the versions of the first decide, and the others are pinned to their newest.
        """
        subject, changed = subjects.weights(self._main), asyncio.Event()

        async def on_version(message: Msg) -> None:
            changed.set()

        subscription = await self._stack.bus.nc.subscribe(subject, cb=on_version)
        try:
            while True:
                changed.clear()
                was_over = is_over.is_set()
                try:
                    versions = await self._pin_due(every, was_over)
                except (BusError, NatsError) as error:
                    log.warning("no version can be chosen for evaluation now: %s", str(error) or type(error).__name__)
                    await asyncio.sleep(RECHECK_SECONDS)
                    continue
                if versions is not None:
                    await self.evaluate(versions)
                elif was_over:
                    return
                else:
                    await first_completed(changed.wait(), is_over.wait(), asyncio.sleep(RECHECK_SECONDS))
        finally:
            with suppress(BusError, NatsError):
                await self.unpin()
                await subscription.unsubscribe()

    async def _pin_due(self, every: int, is_over: bool) -> dict[str, int] | None:
        """Pin the next versions to evaluate and return them; unpin and return None if there are none."""
        releases = {model: await registry.refresh() for model, registry in self._releases.items()}
        if any(release.pinned is not None and not self._is_own_pin(release) for release in releases.values()):
            return None
        due = await self._find_due(releases[self._main], every, is_over)
        if not due:
            await self.unpin()
            return None
        if releases[self._main].pinned != due[0]:
            await self.unpin()  # so that the other models go on to their newest versions
        versions = {self._main: due[0]}
        for model, registry in self._releases.items():
            if model != self._main:
                target = (await registry.resolve_target()).serve
                if target is None:
                    return None
                versions[model] = target.version
        for model, version in versions.items():
            if (await self._releases[model].refresh()).pinned != version:
                reason = "held-out problems are being answered"
                await self._releases[model].append_decision("pinned", version, actor=self._actor, reason=reason)
        return versions

    async def _find_due(self, release: ReleaseState, every: int, is_over: bool) -> list[int]:
        """The versions to evaluate now, oldest first; without the last one, which is evaluated after."""
        registry = self._releases[self._main]
        evaluated = {dict(key)[self._main] for _, key in self._ended if self.is_complete(dict(key))}
        published: dict[int, WeightManifest] = {}
        async for manifest, _ in registry.list_versions():
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
        return [version for version in due if not await registry.find_expired_blob(published[version])]

    async def unpin(self) -> None:
        """Let nodes follow the newest versions again, unless somebody else has pinned one."""
        for registry in self._releases.values():
            release = await registry.refresh()
            if release.pinned is not None and self._is_own_pin(release):
                await registry.append_decision("unpinned", release.pinned, actor=self._actor)

    def _is_own_pin(self, release: ReleaseState) -> bool:
        pin = find_pin(release)
        return pin is not None and pin.actor == self._actor


def _key(versions: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(versions.items()))
