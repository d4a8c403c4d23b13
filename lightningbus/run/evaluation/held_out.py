"""Evaluations of a training job: before and after training, and of chosen versions while it goes on."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

from clickhouse_connect.driver.client import Client

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation.evaluation import Evaluation, evaluate
from lightningbus.run.evaluation.pinned_version import VersionPins
from lightningbus.run.evaluation.prompt_versions import pin_versions
from lightningbus.run.evaluation.request import ROLLOUT_SECONDS, RolloutRequest
from lightningbus.run.processes.stack import LocalStack
from lightningbus.run.settings.evaluation import HeldOutSettings, SuiteSettings
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.schemas.weights.events import ReleaseState, WeightManifest
from lightningbus.schemas.weights.release_policy import is_servable
from lightningbus.tasks.task_loading import TaskInput


def choose_due_versions(published: Iterable[int], evaluated: Iterable[int], every: int) -> list[int]:
    """Choose the versions to evaluate, oldest first: the first one at or after each multiple of ``every``. Pure.

    Version 0 is evaluated before training. A multiple itself may be missing: versions are published every few steps,
    and a learner that starts again skips numbers.
    """
    covered = {version // every for version in evaluated} | {0}
    due: dict[int, int] = {}
    for version in sorted(published):
        if version // every not in covered:
            due.setdefault(version // every, version)
    return list(due.values())


def build_held_out_request(
    settings: RunSettings, held_out: HeldOutSettings, learner: LearnerSettings | None
) -> RolloutRequest:
    """Build the conditions of a run's evaluations: those of the main model's learner, where there is one."""
    reward, suite = learner.reward if learner else "", ""
    is_reward_of_all = len(settings.all_learners) < 2
    if isinstance(held_out, SuiteSettings):
        suite = held_out.name
        if held_out.reward is not None:
            reward, is_reward_of_all = held_out.reward, True
    return RolloutRequest(
        run=settings.name,
        agent=held_out.agent,
        evaluation=suite,
        model=learner.model if learner else settings.main_model,
        role_models=settings.role_models,
        samples=held_out.samples,
        deadline=held_out.deadline,
        rollout_timeout=learner.rollout_timeout_seconds if learner else ROLLOUT_SECONDS,
        reward=reward,
        is_reward_of_all=is_reward_of_all,
        pass_reward=held_out.pass_reward,
    )


async def evaluate_once_served(
    stack: LocalStack, client: Client, request: RolloutRequest, tasks: Sequence[TaskInput]
) -> Evaluation:
    """Wait until nodes serve the versions that the request pins, and `evaluate`.

    Raises `UserError` when a process of the run fails for good, or no node serves a version in time.
    """
    await stack.wait_until_served(request.weight_versions)
    return await stack.or_child_failure(evaluate(stack.bus, client, request, tasks))


class HeldOutSet:
    """Held-out tasks of one name: those of a job themselves, or a suite."""

    def __init__(
        self,
        request: RolloutRequest,
        settings: HeldOutSettings,
        tasks: Sequence[TaskInput],
        evaluations: Iterable[Evaluation],
    ) -> None:
        """Begin with the ``evaluations`` of earlier starts; those of other sets are left out."""
        self._request, self._settings, self._tasks = request, settings, tasks
        self._ended = [each for each in evaluations if each.label in settings.labels]

    def is_complete(self, versions: Mapping[str, int]) -> bool:
        """Return whether these versions, one of each model, have been evaluated in every way, with whatever prompts."""
        labels = {each.label for each in self._ended if each.versions == versions}
        return labels.issuperset(self._settings.labels)

    def choose_due(self, published: Iterable[int], model: str) -> list[int]:
        """Choose the versions of a model to evaluate during training, oldest first."""
        every = self._settings.every
        return choose_due_versions(published, self._list_evaluated(model), every) if every is not None else []

    def is_past_due(self, version: int, model: str) -> bool:
        """Return whether neither this version nor an older one is to be evaluated during training."""
        every = self._settings.every
        return every is None or version // every <= max(self._list_evaluated(model), default=0) // every

    def _list_evaluated(self, model: str) -> set[int]:
        return {each.versions[model] for each in self._ended if self.is_complete(each.versions)}

    async def evaluate(
        self, stack: LocalStack, client: Client, versions: Mapping[str, int]
    ) -> AsyncGenerator[Evaluation]:
        """Evaluate versions that nodes serve until then, with the prompts in use, in each way that has not ended."""
        pinned = await pin_versions(stack.bus, self._request, versions)
        for label, sampling in self._settings.labels.items():
            if any(
                (each.label, each.versions, each.prompt_versions) == (label, versions, pinned.prompt_versions)
                for each in self._ended
            ):
                continue
            evaluation = await evaluate_once_served(stack, client, pinned.with_sampling(sampling), self._tasks)
            self._ended.append(evaluation)
            yield evaluation


class HeldOut:
    """The sets of held-out tasks of a job, answered by versions of its models."""

    def __init__(
        self,
        stack: LocalStack,
        client: Client,
        sets: Sequence[HeldOutSet],
        pins: VersionPins,
        on_evaluation: Callable[[Evaluation], Awaitable[None]],
    ) -> None:
        """``on_evaluation`` is called with each new evaluation."""
        self._stack, self._client, self._sets = stack, client, sets
        self._pins, self._on_evaluation = pins, on_evaluation
        self._due: Sequence[HeldOutSet] = ()
        self._oldest_due = 0

    def is_complete(self, versions: Mapping[str, int]) -> bool:
        """Return whether these versions, one of each model, have been evaluated in every way, with whatever prompts."""
        return all(each.is_complete(versions) for each in self._sets)

    async def run_all(self, versions: Mapping[str, int]) -> None:
        """Evaluate versions that nodes serve until then, on every set. What has ended already is not done again."""
        await self._evaluate(self._sets, versions)

    async def run(self, versions: Mapping[str, int]) -> None:
        """Evaluate the versions that `pin_due` returned, on the sets for which they are due."""
        await self._evaluate(self._due, versions)

    async def _evaluate(self, sets: Iterable[HeldOutSet], versions: Mapping[str, int]) -> None:
        for each in sets:
            async with aclosing(each.evaluate(self._stack, self._client, versions)) as evaluations:
                async for evaluation in evaluations:
                    await self._on_evaluation(evaluation)

    async def pin_interrupted(self) -> dict[str, int] | None:
        """Pin the versions whose evaluation an earlier start did not end, and return them; None: there are none.

        Call it before learners start, and while runners take no training task: with an older version these would sample
        rollouts beyond the staleness bound. From then on no version is due that is older than the newest of now.
        """
        main = self._pins.registries[self._pins.main]
        async for newest, _ in main.list_versions():
            self._oldest_due = newest.version
            break
        if await self._pins.is_taken() or (last := self._pins.find_last_pinned(self._pins.main)) is None:
            return None
        sets = [each for each in self._sets if each.choose_due([last], self._pins.main)]
        if last >= self._oldest_due or not sets or not await self._pins.are_loadable({self._pins.main: last}):
            return None
        return await self._pin(last, sets)

    async def pin_due(self, is_over: bool) -> dict[str, int] | None:
        """Pin the next versions to evaluate and return them; unpin and return None if there are none.

        With several models the versions of the first decide, and the others are pinned to their newest. The last
        version is not due once training ``is_over``: it is evaluated after.
        """
        if await self._pins.is_taken():
            return None
        main = self._pins.registries[self._pins.main]
        due = await self._find_due(main.state, is_over)
        is_alone = len(self._pins.registries) == 1
        if due is None or (main.state.pinned != due[0] and not is_alone):
            await self._pins.unpin()  # so that the other models go on to their newest versions
        return await self._pin(*due) if due is not None else None

    async def _pin(self, version: int, sets: Sequence[HeldOutSet]) -> dict[str, int] | None:
        """Pin a version of the main model, and the newest of the others, for `run`; None: another one has none yet."""
        others = await self._pins.find_newest(but=self._pins.main)
        if others is None:
            return None
        self._due, versions = sets, {self._pins.main: version, **others}
        await self._pins.pin(versions, "held-out tasks are being answered")
        return versions

    async def _find_due(self, release: ReleaseState, is_over: bool) -> tuple[int, list[HeldOutSet]] | None:
        """Find the oldest version to evaluate now, and the sets for it; not the last one, which is evaluated after."""
        registry = self._pins.registries[self._pins.main]
        published: dict[int, WeightManifest] = {}
        async for manifest, _ in registry.list_versions():
            published.setdefault(manifest.version, manifest)
            if all(each.is_past_due(manifest.version, self._pins.main) for each in self._sets):
                break
        last = max(published, default=0)
        servable = [
            version
            for version, manifest in published.items()
            if version >= self._oldest_due and is_servable(release, manifest) and not (is_over and version == last)
        ]
        due: dict[int, list[HeldOutSet]] = {}
        for each in self._sets:
            for version in each.choose_due(servable, self._pins.main):
                due.setdefault(version, []).append(each)
        for version in sorted(due):
            if not await registry.find_expired_blob(published[version]):
                return version, due[version]
        return None
