"""Evaluations of a training job: before and after training, and of chosen versions while it goes on."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clickhouse_connect.driver.client import Client

from lightningbus.run.evaluation.evaluation import NODE_SECONDS, ROLLOUT_SECONDS, SAMPLINGS, Evaluation, evaluate
from lightningbus.run.evaluation.pinned_version import VersionPins
from lightningbus.run.evaluation.prompt_versions import read_prompt_versions
from lightningbus.run.processes.stack import LocalStack
from lightningbus.run.settings.run_file import EvalSettings
from lightningbus.schemas.weights.events import ReleaseState, WeightManifest
from lightningbus.schemas.weights.release_policy import is_servable
from lightningbus.tasks.task_file import TaskInput


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
    prompt_versions: Mapping[str, int] = field(default_factory=dict)
    """By prompt; one that is not here: the version that is in use."""


async def evaluate_once_served(
    stack: LocalStack,
    client: Client,
    run: str,
    settings: EvalSettings,
    problems: Sequence[TaskInput],
    sampling: str,
    policies: PolicyVersions,
    rollout_timeout: float,
    label_prefix: str = "",
) -> Evaluation:
    """Answer the problems under versions as ``sampling`` of `SAMPLINGS` says, once nodes serve them.

    Raises `UserError` when a process of the run fails for good, or no node serves a version in time.
    """
    await stack.wait_until_served(policies.versions, NODE_SECONDS)
    work = evaluate(
        stack.bus,
        client,
        run,
        problems,
        label=label_prefix + sampling,
        versions=policies.versions,
        model=policies.main,
        role_models=policies.role_models,
        prompt_versions=policies.prompt_versions,
        samples=settings.samples if sampling == "sampled" else 1,
        sampling=SAMPLINGS[sampling],
        deadline=settings.deadline,
        rollout_timeout=rollout_timeout,
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
        pins: VersionPins,
        role_models: Mapping[str, str],
        problems: list[TaskInput],
        evaluations: Iterable[Evaluation],
        on_evaluation: Callable[[Evaluation], Awaitable[None]],
        reward: str = "",
        rollout_timeout: float = ROLLOUT_SECONDS,
    ) -> None:
        """``reward`` names the reward that counts; empty: the main one.

        ``rollout_timeout``: seconds a rollout may take; ``evaluations``: those of earlier starts; ``on_evaluation`` is
        called with each new one.
        """
        self._stack, self._client, self._run, self._settings = stack, client, run, settings
        self._pins, self._main, self._role_models, self._reward = pins, pins.main, role_models, reward
        self._problems, self._on_evaluation, self._rollout_timeout = problems, on_evaluation, rollout_timeout
        self._ended = {
            (evaluation.label, _key(evaluation.versions), _key(evaluation.prompt_versions))
            for evaluation in evaluations
        }

    def is_complete(self, versions: Mapping[str, int]) -> bool:
        """Whether these versions, one of each model, have been evaluated in every way, with whatever prompts."""
        labels = {label for label, weights, _ in self._ended if weights == _key(versions)}
        return labels.issuperset(self._settings.sampling)

    async def run(self, versions: Mapping[str, int]) -> None:
        """Evaluate versions that nodes serve until then, with the prompts in use.

        What has ended already is not done again.
        """
        prompts = await read_prompt_versions(self._stack.bus, self._settings.agent)
        policies = PolicyVersions(versions, self._main, self._role_models, self._reward, prompts)
        for label in self._settings.sampling:
            key = label, _key(versions), _key(prompts)
            if key in self._ended:
                continue
            evaluation = await evaluate_once_served(
                self._stack, self._client, self._run, self._settings, self._problems, label, policies,
                self._rollout_timeout,
            )  # fmt: skip
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
        main = self._pins.registries[self._main]
        due = await self._find_due(main.state, self._settings.every, is_over)
        if not due or main.state.pinned != due[0]:
            await self._pins.unpin()  # so that the other models go on to their newest versions
        others = await self._pins.find_newest(but=self._main) if due else None
        if others is None:
            return None
        versions = {self._main: due[0], **others}
        await self._pins.pin(versions, "held-out problems are being answered")
        return versions

    async def _find_due(self, release: ReleaseState, every: int, is_over: bool) -> list[int]:
        """The versions to evaluate now, oldest first; without the last one, which is evaluated after."""
        registry = self._pins.registries[self._main]
        evaluated = {dict(key)[self._main] for _, key, _ in self._ended if self.is_complete(dict(key))}
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
