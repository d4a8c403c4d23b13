"""Evaluations of a training job: before and after training, and of chosen versions while it goes on."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from clickhouse_connect.driver.client import Client

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation.evaluation import Evaluation, evaluate
from lightningbus.run.evaluation.pinned_version import VersionPins
from lightningbus.run.evaluation.prompt_versions import pin_versions
from lightningbus.run.evaluation.request import ROLLOUT_SECONDS, RolloutRequest
from lightningbus.run.processes.stack import LocalStack
from lightningbus.run.settings.run_file import EvalSettings, RunSettings
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
    settings: RunSettings, held_out: EvalSettings, learner: LearnerSettings | None
) -> RolloutRequest:
    """Build the conditions of a run's evaluations: those of the main model's learner, where there is one."""
    return RolloutRequest(
        run=settings.name,
        agent=held_out.agent,
        model=learner.model if learner else settings.main_model,
        role_models=settings.role_models,
        samples=held_out.samples,
        deadline=held_out.deadline,
        rollout_timeout=learner.rollout_timeout_seconds if learner else ROLLOUT_SECONDS,
        reward=learner.reward if learner else "",
    )


async def evaluate_once_served(
    stack: LocalStack, client: Client, request: RolloutRequest, tasks: Sequence[TaskInput]
) -> Evaluation:
    """Wait until nodes serve the versions that the request pins, and `evaluate`.

    Raises `UserError` when a process of the run fails for good, or no node serves a version in time.
    """
    await stack.wait_until_served(request.weight_versions)
    return await stack.or_child_failure(evaluate(stack.bus, client, request, tasks))


class HeldOut:
    """The held-out tasks of a job, answered by versions of its models."""

    def __init__(
        self,
        stack: LocalStack,
        client: Client,
        request: RolloutRequest,
        tasks: Sequence[TaskInput],
        settings: EvalSettings,
        pins: VersionPins,
        evaluations: Iterable[Evaluation],
        on_evaluation: Callable[[Evaluation], Awaitable[None]],
    ) -> None:
        """Begin with the ``evaluations`` of earlier starts; ``on_evaluation`` is called with each new one."""
        self._stack, self._client, self._request, self._tasks = stack, client, request, tasks
        self._settings, self._pins, self._on_evaluation = settings, pins, on_evaluation
        self._ended = {
            (evaluation.label, _key(evaluation.versions), _key(evaluation.prompt_versions))
            for evaluation in evaluations
        }

    def is_complete(self, versions: Mapping[str, int]) -> bool:
        """Return whether these versions, one of each model, have been evaluated in every way, with whatever prompts."""
        labels = {label for label, weights, _ in self._ended if weights == _key(versions)}
        return labels.issuperset(self._settings.sampling)

    async def run(self, versions: Mapping[str, int]) -> None:
        """Evaluate versions that nodes serve until then, with the prompts in use.

        What has ended already is not done again.
        """
        pinned = await pin_versions(self._stack.bus, self._request, versions)
        for label in self._settings.sampling:
            key = label, _key(versions), _key(pinned.prompt_versions)
            if key in self._ended:
                continue
            request = pinned.with_sampling(label)
            evaluation = await evaluate_once_served(self._stack, self._client, request, self._tasks)
            self._ended.add(key)
            await self._on_evaluation(evaluation)

    async def pin_due(self, is_over: bool) -> dict[str, int] | None:
        """Pin the next versions to evaluate and return them; unpin and return None if there are none.

        With several models the versions of the first decide, and the others are pinned to their newest. The last
        version is not due once training ``is_over``: it is evaluated after.
        """
        assert self._settings.every is not None, "somebody wants versions evaluated during training"
        if await self._pins.is_taken():
            return None
        main = self._pins.registries[self._pins.main]
        due = await self._find_due(main.state, self._settings.every, is_over)
        if not due or main.state.pinned != due[0]:
            await self._pins.unpin()  # so that the other models go on to their newest versions
        others = await self._pins.find_newest(but=self._pins.main) if due else None
        if others is None:
            return None
        versions = {self._pins.main: due[0], **others}
        await self._pins.pin(versions, "held-out tasks are being answered")
        return versions

    async def _find_due(self, release: ReleaseState, every: int, is_over: bool) -> list[int]:
        """Find the versions to evaluate now, oldest first; without the last one, which is evaluated after."""
        registry = self._pins.registries[self._pins.main]
        evaluated = {dict(key)[self._pins.main] for _, key, _ in self._ended if self.is_complete(dict(key))}
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


def _key(versions: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(versions.items()))
